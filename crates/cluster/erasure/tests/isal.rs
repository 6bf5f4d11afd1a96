//! The code against Debian's libisal, byte for byte.

use ebb_erasure::{Code, Shape};
use ebb_testing::skip;
use ebb_types::Random;
use libloading::{Library, Symbol};
use std::ffi::c_int;

type Matrix = unsafe extern "C" fn(*mut u8, c_int, c_int);
type Tables = unsafe extern "C" fn(c_int, c_int, *const u8, *mut u8);
type Encode = unsafe extern "C" fn(c_int, c_int, c_int, *const u8, *const *const u8, *const *mut u8);

struct Isal(Library);

impl Isal {
    fn encode(&self, shape: Shape, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (k, r, length) = (shape.data(), shape.parity(), data[0].len());
        let mut matrix = vec![0; shape.servers() * k];
        let mut tables = vec![0; 32 * k * r];
        let mut parity = vec![vec![0; length]; r];
        let sources: Vec<*const u8> = data.iter().map(|strip| strip.as_ptr()).collect();
        let targets: Vec<*mut u8> = parity.iter_mut().map(|strip| strip.as_mut_ptr()).collect();
        // SAFETY: the signatures are those of erasure_code.h, and every buffer has the length that it names.
        unsafe {
            let make: Symbol<Matrix> = self.0.get(b"gf_gen_rs_matrix").expect("it is there");
            make(matrix.as_mut_ptr(), shape.servers() as c_int, k as c_int);
            let init: Symbol<Tables> = self.0.get(b"ec_init_tables").expect("it is there");
            init(k as c_int, r as c_int, matrix[k * k..].as_ptr(), tables.as_mut_ptr());
            let encode: Symbol<Encode> = self.0.get(b"ec_encode_data").expect("it is there");
            encode(
                length as c_int,
                k as c_int,
                r as c_int,
                tables.as_ptr(),
                sources.as_ptr(),
                targets.as_ptr(),
            );
        }
        parity
    }
}

#[test]
fn parity_is_isa_ls_for_every_shape() {
    // SAFETY: loading the library runs no code but its own selection of kernels.
    let Ok(library) = (unsafe { Library::new("libisal.so.2") }) else {
        return skip("libisal2 is not installed");
    };
    let isal = Isal(library);
    let mut random = Random::new(11);
    for k in Shape::DATA_MIN..=Shape::DATA_MAX {
        for r in 1..=Shape::PARITY_MAX {
            let shape = Shape::new(k, r).expect("a shape");
            let length = 1 + random.below(5000) as usize;
            let strip = |random: &mut Random| (0..length).map(|_| random.below(256) as u8).collect();
            let data: Vec<Vec<u8>> = (0..k).map(|_| strip(&mut random)).collect();
            let mut parity = vec![vec![0; length]; shape.parity()];
            let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            Code::new(shape)
                .encode(&sources, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            assert!(parity == isal.encode(shape, &data), "{shape}, {length} bytes");
        }
    }
}
