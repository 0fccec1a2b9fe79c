//! tmp
use skyphos_kernels::*;
use std::time::Instant;
fn best(n: usize, mut f: impl FnMut()) -> f64 {
    f();
    (0..n)
        .map(|_| {
            let t = Instant::now();
            f();
            t.elapsed().as_secs_f64()
        })
        .fold(f64::MAX, f64::min)
}
fn main() {
    let n = 16 << 20;
    let mut x = 1u64;
    let v: Vec<f32> = (0..n)
        .map(|_| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((x >> 40) as f32 / 8388608.0 - 1.0).powi(3)
        })
        .collect();
    let mut w = vec![0f32; n];
    let t = best(7, || w.copy_from_slice(&v));
    let bw = 8.0 * n as f64 / t / 1e9;
    println!("copy {bw:.1} GB/s");
    for bits in [2, 4, 8] {
        for scale in [Scale::L2, Scale::Max] {
            let p = Quantize::new(bits, 1024, scale, 1).unwrap();
            let mut out = vec![0u8; quantised_bytes(n, &p)];
            let d = Draw { call: 0, rank: 0, first_bucket: 0 };
            let t = best(7, || quantise(&v, &p, d, &mut out).unwrap());
            let r = (4 * n + out.len()) as f64 / t / 1e9;
            println!("{bits} {scale:?} quantise {r:.1} GB/s {:.2}", r / bw);
            let t = best(7, || dequantise(&out, &p, &mut w).unwrap());
            let r = (4 * n + out.len()) as f64 / t / 1e9;
            println!("{bits} {scale:?} dequantise {r:.1} GB/s {:.2}", r / bw);
        }
    }
}
