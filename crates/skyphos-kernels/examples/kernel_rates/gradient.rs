//! Compression of a gradient before it is sent: add it to the residual, select the largest entries, encode segments.

use crate::{Check, Kernel, Run};
use skyphos_kernels::stream::{Encoder, EntryIndices};
use skyphos_kernels::{Incoming, Layer, Select, take_layers};
use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;

/// Number of the model's parameters, and the two sizes of its layers, which alternate.
const PARAMETERS: usize = 25_000_000;
const LAYERS: [usize; 2] = [1_000_000, 250_000];

/// Encodes entries as segments of 32 KB, in reused memory like that of a transport's pool.
fn encode(indices: &[u32], picked: &[f32], slab: &mut Vec<u8>) {
    let mut encoder = Encoder::new(EntryIndices::Listed(indices), picked, 1, PARAMETERS as u64, 32 << 10);
    let mut len = 0;
    while let Some(next) = encoder.plan() {
        let end = len + next.bytes();
        slab.resize(end.max(slab.len()), 0);
        encoder.write(&next, &mut slab[len..end]);
        len = end;
    }
    black_box(&slab[..len]);
}

/// Compression of a gradient, compared with adding it to the residual.
pub fn compressing(k: usize, values: &[f32]) -> Kernel {
    let (mut layers, mut start) = (Vec::new(), 0);
    while start < PARAMETERS {
        let end = PARAMETERS.min(start + LAYERS[layers.len() % 2]);
        layers.push(Layer { range: start..end, select: Select::Buckets { k, bucket: 512 } });
        start = end;
    }
    let gradient: Rc<Vec<f32>> = Rc::new(values.iter().cycle().take(PARAMETERS).copied().collect());
    let residual = Rc::new(RefCell::new(vec![0f32; PARAMETERS]));
    let chosen = Rc::new(RefCell::new((Vec::new(), Vec::new())));
    let (last, last_chosen, all_layers) = (residual.clone(), chosen.clone(), layers.clone());
    let traffic = PARAMETERS * size_of::<f32>() * 3;
    let mut slab = Vec::new();
    let run: Run = {
        let gradient = gradient.clone();
        Box::new(move |_| {
            let (indices, picked) = &mut *chosen.borrow_mut();
            take_layers(&mut residual.borrow_mut(), Incoming::new(&gradient), &layers, indices, picked)
                .expect("valid layers");
            encode(indices, picked, &mut slab);
            traffic
        })
    };
    let check: Check = Box::new(move |_| {
        let (residual, (indices, picked)) = (&*last.borrow(), &*last_chosen.borrow());
        let mut taken = indices.iter().map(|i| *i as usize).zip(picked).peekable();
        for Layer { range, .. } in all_layers {
            for start in range.clone().step_by(512) {
                let bucket = start..range.end.min(start + 512);
                let largest = residual[bucket.clone()].iter().fold(0f32, |largest, v| largest.max(v.abs()));
                for _ in 0..k {
                    let (i, v) = taken.next().expect("k entries of each bucket");
                    assert!(bucket.contains(&i) && v.abs() >= largest && residual[i] == 0.0);
                }
            }
        }
        assert!(taken.next().is_none());
    });
    let mut residual_only = vec![0f32; PARAMETERS];
    let baseline: Run = Box::new(move |_| {
        black_box(&mut residual_only).iter_mut().zip(black_box(&*gradient)).for_each(|(r, g)| *r += g);
        traffic
    });
    Kernel { run, check, entries: PARAMETERS, baseline: Some(baseline) }
}
