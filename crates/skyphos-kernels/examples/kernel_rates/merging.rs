//! Merges of two sorted sets, compared with a plain loop in C (`merge.c`) that has two pointers and a branch for each case.

use crate::sparse::{Kind, random_set};
use crate::{Check, Kernel, Line, Run};
use skyphos_kernels::{Entries, merge};
use skyphos_types::ReduceOp;
use std::cell::RefCell;
use std::process::Command;
use std::rc::Rc;
use std::sync::OnceLock;

pub fn lines() -> Vec<Line> {
    // The smaller sets stay in the L2 cache, as the batches of a fold do; the larger ones come from memory.
    let sizes = [(18, 0.1, "10 %"), (24, 0.01, "1 %"), (24, 0.1, "10 %")];
    let kinds = [
        (Kind::Uniform, "random"),
        (Kind::Runs(16.0), "runs of 16"),
        (Kind::Runs(64.0), "runs of 64"),
        (Kind::Runs(1000.0), "runs of 1000"),
    ];
    let mut all: Vec<Line> = Vec::new();
    for (log, density, share) in sizes {
        for (kind, name) in kinds {
            let sets = move || [3, 4].map(|seed| random_set(1 << log, density, kind, seed));
            let make = move |v: &[f32]| merging(sets(), v);
            all.push((format!("merge 2^{log}, {share}, {name}"), Some(3.0), Box::new(make)));
        }
    }
    all
}

type Merged = Rc<RefCell<(Vec<u32>, Vec<f32>)>>;

fn merging(sets: [Vec<u64>; 2], values: &[f32]) -> Kernel {
    let [a, b] = sets.map(|set| {
        let indices: Vec<u32> = set.iter().map(|i| *i as u32).collect();
        let values: Vec<f32> = indices.iter().map(|i| values[*i as usize]).collect();
        Rc::new((indices, values))
    });
    let entries = a.0.len() + b.0.len();
    let (merged, plain) = (Merged::default(), Merged::default());
    let (last, last_plain) = (merged.clone(), plain.clone());
    let (a2, b2) = (a.clone(), b.clone());
    let run: Run = Box::new(move |_| {
        let (indices, values) = &mut *merged.borrow_mut();
        let (a, b) = (Entries { indices: &a.0, values: &a.1 }, Entries { indices: &b.0, values: &b.1 });
        merge(&ReduceOp::Sum, a, b, indices, values).expect("sums do not fail");
        (entries + indices.len()) * 8
    });
    let baseline: Run = Box::new(move |_| {
        let (indices, values) = &mut *plain.borrow_mut();
        indices.resize(entries, 0);
        values.resize(entries, 0.0);
        let count = plain_merge((&a2.0, &a2.1), (&b2.0, &b2.1), indices, values);
        (entries + count) * 8
    });
    let check: Check = Box::new(move |_| {
        let (got, want) = (last.borrow(), last_plain.borrow());
        let count = got.0.len();
        assert!(got.0 == want.0[..count] && got.1 == want.1[..count]);
        assert!(want.0.get(count).is_none_or(|rest| *rest == 0));
    });
    Kernel { run, check, entries, baseline: Some(baseline) }
}

type Merge = unsafe extern "C" fn(
    *const u32,
    *const f32,
    usize,
    *const u32,
    *const f32,
    usize,
    *mut u32,
    *mut f32,
) -> usize;

/// `merge.c`, compiled for this processor by the compiler that links Rust programs.
fn plain_library() -> &'static libloading::Library {
    static LOADED: OnceLock<libloading::Library> = OnceLock::new();
    LOADED.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("kernel_rates-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let (source, library) = (folder.join("merge.c"), folder.join("merge.so"));
        std::fs::write(&source, include_str!("merge.c")).expect("a writable file");
        let flags = ["-O3", "-march=native", "-shared", "-fPIC", "-o"];
        let done = Command::new("cc").args(flags).arg(&library).arg(&source).status();
        assert!(done.is_ok_and(|status| status.success()), "cc must compile merge.c");
        // SAFETY: the library was just made from `merge.c`, and runs nothing when it is loaded.
        let loaded = unsafe { libloading::Library::new(&library) }.expect("the compiled library");
        let _ = std::fs::remove_dir_all(folder); // it stays mapped
        loaded
    })
}

fn plain_merge(a: (&[u32], &[f32]), b: (&[u32], &[f32]), indices: &mut [u32], values: &mut [f32]) -> usize {
    let ((i, x), (j, y)) = (a, b);
    assert!(i.len() == x.len() && j.len() == y.len());
    assert!(indices.len() >= i.len() + j.len() && values.len() >= i.len() + j.len());
    // SAFETY: the signature is that of `merge.c`, and the arrays have the lengths that it gets.
    unsafe {
        let merge: libloading::Symbol<'_, Merge> = plain_library().get(b"merge").expect("the function merge");
        let (to, rows) = (indices.as_mut_ptr(), values.as_mut_ptr());
        merge(i.as_ptr(), x.as_ptr(), i.len(), j.as_ptr(), y.as_ptr(), j.len(), to, rows)
    }
}
