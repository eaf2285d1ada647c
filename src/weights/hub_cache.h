/* hub_cache.h - where a model lies on this machine. Never touches the network. */
#ifndef WEIGHTS_HUB_CACHE_H
#define WEIGHTS_HUB_CACHE_H
#include "base/failure.h"
#include "base/memory.h"

/* `model` is a folder, or a hub id ("org/name" or "name") whose files an earlier download left in the Hugging Face or
 * the ModelScope cache. *folder lives in a. When nothing is found the failure lists every place that was looked at. */
bool hub_find_model(const char **folder, const char *model, arena *a, failure *f);

/* Where this program may keep what it has measured of the machine: liger-sft in XDG_CACHE_HOME or ~/.cache; lives in a.
 * NULL when neither is known. The folder need not exist. */
const char *hub_own_cache(arena *a);
#endif
