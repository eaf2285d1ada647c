/* load_data.h - the data sets that a config names, tokenized, with what was left out said on standard error. */
#ifndef CLI_LOAD_DATA_H
#define CLI_LOAD_DATA_H
#include "data/dataset.h"
#include "train/session.h"

/* The rules of the config for reading `paths`. vocab: rows of the model's embedding, 0: unknown. */
dataset_options data_options(const config *c, const string_list *paths, int vocab);

/* Files of `paths` under the rules of the config; s has model and text open. Warns with one line per reason for rows
 * left out. Fails when no label token is left. */
bool load_files(dataset *d, const string_list *paths, const char *key, const session *s, failure *f);
/* dataset into *train; val_dataset, or the last split_dataset_ratio of the training rows, into *eval (may stay empty).
 */
bool load_training_data(dataset *train, dataset *eval, const session *s, failure *f);
#endif
