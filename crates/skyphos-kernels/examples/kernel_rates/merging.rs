//! Merges of two sorted sets, beside a plain loop.
//!
//! The plain loop is the usual one with two pointers and a branch for each case, as one would write it in C; there
//! is nothing in it for which vector instructions or another compiler would make a difference.

use crate::sparse::{Kind, random_set};
use crate::{Check, Kernel, Line, Run};
use skyphos_kernels::{Entries, merge};
use skyphos_types::ReduceOp;
use std::cell::RefCell;
use std::rc::Rc;

pub fn lines() -> Vec<Line> {
    // The smaller ones stay in the L2 cache, as the batches of a fold do; the larger ones are moved by the memory.
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
        merge(&ReduceOp::Sum, a, b, indices, values).expect("a sum");
        (entries + indices.len()) * 8
    });
    let beside: Run = Box::new(move |_| {
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
    Kernel { run, check, entries, beside: Some(beside) }
}

/// Two pointers and a branch for each case.
#[inline(never)]
fn plain_merge(a: (&[u32], &[f32]), b: (&[u32], &[f32]), indices: &mut [u32], values: &mut [f32]) -> usize {
    let ((i, x), (j, y)) = (a, b);
    assert!(i.len() == x.len() && j.len() == y.len());
    assert!(indices.len() >= i.len() + j.len() && values.len() >= i.len() + j.len());
    let (mut p, mut q, mut k) = (0, 0, 0);
    // SAFETY: `p` and `q` are below their lengths where they are used, and `k` is at most their sum.
    unsafe {
        while p < i.len() && q < j.len() {
            let (from_a, from_b) = (*i.get_unchecked(p), *j.get_unchecked(q));
            if from_a < from_b {
                *indices.get_unchecked_mut(k) = from_a;
                *values.get_unchecked_mut(k) = *x.get_unchecked(p);
                p += 1;
            } else if from_b < from_a {
                *indices.get_unchecked_mut(k) = from_b;
                *values.get_unchecked_mut(k) = *y.get_unchecked(q);
                q += 1;
            } else {
                *indices.get_unchecked_mut(k) = from_a;
                *values.get_unchecked_mut(k) = *x.get_unchecked(p) + *y.get_unchecked(q);
                p += 1;
                q += 1;
            }
            k += 1;
        }
    }
    for (i, x) in [(&i[p..], &x[p..]), (&j[q..], &y[q..])] {
        indices[k..k + i.len()].copy_from_slice(i);
        values[k..k + x.len()].copy_from_slice(x);
        k += i.len();
    }
    k
}
