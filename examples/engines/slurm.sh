#!/bin/sh
#SBATCH --job-name=skyphos --ntasks=4
#
#     sbatch examples/engines/slurm.sh
#
# srun starts the ranks; the rendezvous is computed from Slurm's own variables.

# srun passes the token on in the environment, so only ranks of this job can join its group.
SKYPHOS_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(16))')
export SKYPHOS_TOKEN

# When one rank fails, end the others too instead of having them wait for it.
srun --kill-on-bad-exit=1 python examples/engines/allreduce.py
