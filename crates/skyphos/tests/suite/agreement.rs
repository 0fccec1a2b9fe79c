//! Arguments that differ between ranks: the error on every rank names the argument and both values.

use crate::common::{local, on_all, shared_memory, tcp};
use skyphos::{
    Algorithm, AllreduceOptions, ArrayMove, ArrayOptions, Comm, ConfigureOptions, Error, Result, Schedule,
    shape_of,
};

/// The error text that all ranks raise.
fn raised_error(
    make: crate::common::MakeGroup,
    size: u32,
    body: impl Fn(&Comm) -> Result<()> + Sync,
) -> String {
    let all = on_all(make(size), |comm| {
        let error = body(comm).unwrap_err();
        // The group is still usable.
        comm.barrier().run().unwrap();
        error
    });
    for error in &all {
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
    all[0].to_string()
}

fn arguments(name: &str, value: u32) -> Vec<(String, String)> {
    vec![(name.to_owned(), value.to_string()), ("tol".to_owned(), "1e-8".to_owned())]
}

#[test]
fn the_argument_that_differs_is_named() {
    for make in [local as crate::common::MakeGroup, tcp, shared_memory] {
        for size in [2, 3, 5] {
            for _ in 0..20 {
                let last = |comm: &Comm| comm.rank() == size - 1;
                let text = raised_error(make, size, |comm| {
                    comm.agree_arguments("pagerank", arguments("damping", u32::from(last(comm))))
                });
                assert!(text.contains("damping=0") && text.contains("damping=1"), "{text}");
                assert!(!text.contains("tol"), "{text}");
                let text = raised_error(make, size, |comm| {
                    let algorithm = if last(comm) { Algorithm::Ring } else { Algorithm::Auto };
                    let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
                    let x = crate::common::programs::vector(comm.rank(), 0, 40);
                    comm.allreduce(&x).options(options.clone()).run().map(drop)
                });
                assert!(text.contains("algorithm=auto") && text.contains("algorithm=ring"), "{text}");
                let text = raised_error(make, size, |comm| {
                    let shape = if last(comm) { [2, 3] } else { [3, 2] };
                    let what = ArrayMove::Allgather(Schedule::Direct);
                    let out = vec![0.0; 6 * size as usize];
                    comm.move_arrays(what, vec![0.0; 6], out)
                        .options(ArrayOptions { shape: shape_of(&shape) })
                        .prepare()?
                        .run()
                        .map(drop)
                });
                assert!(text.contains("shape=(2, 3)") && text.contains("shape=(3, 2)"), "{text}");
                let text = raised_error(make, size, |comm| {
                    let expected_nnz = last(comm).then_some(7);
                    let options = ConfigureOptions { expected_nnz, ..ConfigureOptions::with_n(10) };
                    comm.configure(&[1u64], &[1u64]).options(options.clone()).run().map(drop)
                });
                assert!(text.contains("expected_nnz=7") && text.contains("expected_nnz=None"), "{text}");
            }
        }
    }
}
