#!/bin/bash
# One rank on each of four nodes: sbatch examples/slurm.sh
#SBATCH --job-name=tf_dslide
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00

set -euo pipefail
# srun tells the ranks of each other through PMI; MPICH speaks pmi2, Open MPI pmix.
srun --mpi=pmi2 --cpu-bind=cores --kill-on-bad-exit=1 \
  .venv/bin/python examples/parallel.py --preset amazon-670k --samples 490449 --wire bfloat16
