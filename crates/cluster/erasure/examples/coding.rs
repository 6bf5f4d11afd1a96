//! Speed of coding on one core, in bytes of data per second: `cargo run --profile dist -p ebb-erasure --example coding
//! 6+3 64`.

use ebb_erasure::{Code, Codes, Shape};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Time measured per figure.
const FOR: Duration = Duration::from_millis(500);

fn main() {
    let mut args = std::env::args().skip(1);
    let shape: Shape = args.next().as_deref().unwrap_or("6+3").parse().expect("a code such as 6+3");
    let kib: usize = args.next().as_deref().unwrap_or("64").parse().expect("the length of a strip in KiB");
    let data: Vec<Vec<u8>> = (0..shape.data()).map(|n| vec![n as u8 + 1; kib << 10]).collect();
    let strips: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    println!("{shape}, strips of {kib} KiB, one core");
    let awake = Codes::new(shape);
    for (what, code) in [("parity", &Code::new(shape)), ("parity and extra strips", awake.of(0))] {
        let mut further = vec![vec![0; kib << 10]; code.strips() - shape.data()];
        let mut out: Vec<&mut [u8]> = further.iter_mut().map(Vec::as_mut_slice).collect();
        rate(what, shape.data() * (kib << 10), || code.encode(black_box(&strips), black_box(&mut out)));
    }
    let code = Code::new(shape);
    let present: Vec<(usize, &[u8])> = (1..=shape.data()).map(|n| (n, strips[n % strips.len()])).collect();
    let mut rebuilt = vec![0; kib << 10];
    rate("a lost strip, rebuilt", kib << 10, || {
        code.recover(black_box(&present), &[0], &mut [&mut rebuilt]).expect("k strips are present");
    });
}

fn rate(what: &str, bytes: usize, mut work: impl FnMut()) {
    let (begin, mut times) = (Instant::now(), 0u64);
    while begin.elapsed() < FOR {
        work();
        times += 1;
    }
    let rate = times as f64 * bytes as f64 / begin.elapsed().as_secs_f64();
    println!("{what:26} {:6.2} GB/s", rate / 1e9);
}
