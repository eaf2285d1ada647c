/* comm_none.c - stands in for MPI in a build without it. */
#include "dist/comm.h"

bool comm_mpi_is_built(void) { return false; }

bool comm_mpi_open(comm_carrier *out, launch_place *place, failure *f) {
    (void)out, (void)place;
    return fail(f, FAIL_MACHINE,
                "started by mpirun or srun as one of several ranks, and this build has no MPI: install libopenmpi-dev "
                "and openmpi-bin and build again, or use --gpus N on one machine");
}
