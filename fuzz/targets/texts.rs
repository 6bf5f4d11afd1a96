//! Analysers' files and evaluation matrices.
#![no_main]

use ebb_eval::Matrix;
use ebb_meter::{Clock, Import, Quantity, import};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    let Some((&which, bytes)) = data.split_first() else { return };
    if which % 2 == 0 {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(matrix) = Matrix::parse(Path::new("m.toml"), &text, 1.0) {
            let _ = matrix.runs();
        }
        return;
    }
    let options = Import {
        name: "a".into(),
        time: "t".into(),
        values: vec![("w".into(), Quantity::Power)],
        ahead_nanos: 5,
        start_unix_nanos: (which % 4 == 1).then_some(7),
    };
    let _ = import(bytes, &options, Clock { unix_nanos_at_zero: 0 });
});
