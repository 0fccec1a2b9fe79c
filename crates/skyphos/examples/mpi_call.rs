//! The time of a small allreduce over MPI, without Python: `mpiexec -n 2 target/release/examples/mpi_call [BYTES]` (8 by default) prints
//! the seconds of a call, as the mean of the best round.

use skyphos::{Comm, Settings, mpi};
use std::time::{Duration, Instant};

const CALLS: u32 = 5000;
const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bytes = std::env::args().nth(1).map_or(Ok(8), |bytes| bytes.parse::<usize>())?;
    let launched = std::env::var("PMI_SIZE").or(std::env::var("OMPI_COMM_WORLD_SIZE")).ok();
    let launched = launched.map(|size| size.parse()).transpose()?;
    let settings = Settings::default();
    let (comm, places, timeout, interrupted) = (None, Vec::new(), settings.timeout, None);
    let transport = mpi::connect(&mpi::Options { comm, places, launched, timeout, interrupted })?;
    let comm = Comm::over(Box::new(transport), settings)?;
    let (mine, mut sum) = (vec![f64::from(comm.rank()); bytes.div_ceil(8)], vec![0.0; bytes.div_ceil(8)]);
    let want = (0..comm.size()).map(f64::from).sum::<f64>();
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        comm.barrier().run()?;
        let start = Instant::now();
        for _ in 0..CALLS {
            comm.allreduce_dense(&mine, &mut sum).run()?;
        }
        best = best.min(start.elapsed() / CALLS);
        assert!(sum.iter().all(|number| *number == want));
    }
    if comm.rank() == 0 {
        println!("{}", best.as_secs_f64());
    }
    comm.close()?;
    drop(comm);
    mpi::Library::end();
    Ok(())
}
