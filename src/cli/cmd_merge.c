/* cmd_merge.c - `liger-sft merge`: a PEFT adapter folded into its base model, checked by reading it back. */
#include "base/folder_lock.h"
#include "base/log.h"
#include "cli/command.h"
#include "cpu/cpu.h"
#include "weights/hub_cache.h"
#include "weights/merge.h"
#include "weights/model_folder.h"

static bool merge(const config *c, arena *a, failure *f) {
    merge_options o = {.adapter = c->adapter,
                       .output = c->output_dir,
                       .overwrite = c->overwrite_output_dir,
                       .shard_bytes = MODEL_FOLDER_SHARD_BYTES};
    TRY(config_need(c, "model", f) && config_need(c, "adapter", f));
    TRY(hub_find_model(&o.model, c->model, a, f));
    TRY(cpu_blas_open(f));
    merge_report r;
    TRY(merge_adapter(&o, &r, f));
    if (r.rounding > 0.1)
        log_warning("rounding to the stored type changed the weights by %.0f %% of what the adapter did",
                    100 * r.rounding);
    printf("done tensors=%d merged=%d files=%d bytes=%lld rounding=%.3g output_dir=%s\n", r.tensors, r.merged, r.files,
           (long long)r.bytes, r.rounding, c->output_dir);
    return true;
}

bool cmd_merge(const config *c, failure *f) {
    arena a = {0};
    folder_lock lock;
    if (!folder_lock_take(&lock, c->output_dir, f)) return fail_in(f, "output_dir");
    bool ok = merge(c, &a, f);
    arena_free(&a);
    folder_lock_release(&lock);
    return ok;
}
