//! Whether the first requests of a text trace can be what its format's definition says.
//!
//! Bytes read as sectors are requests of megabytes, sectors read as bytes are requests of eight. No device has such
//! requests, so the first lines are looked at, and a trace that looks wrong is refused until somebody says what it
//! counts.

use crate::reader::Raw;
use crate::unit::{SECTOR, Unit, defined};
use crate::{Format, TraceError};

/// Fewer requests show nothing.
const LEAST: usize = 16;
/// No system issues requests of this size on average.
const HUGE: u64 = 8 << 20;
/// A sector's worth of sectors: what is a whole multiple of it, position and size, every time, probably counts bytes.
const ALIGNED: u64 = SECTOR * SECTOR;

/// Refuses the first requests of a trace if they cannot be what the format's definition says.
pub(crate) fn plausible(input: &str, format: Format, first: &[Raw]) -> Result<(), TraceError> {
    let Some(defined @ [_, sizes]) = defined(format) else { return Ok(()) };
    let first: Vec<&Raw> = first.iter().filter(|raw| raw.len > 0).collect();
    if first.len() < LEAST {
        return Ok(());
    }
    let bytes = first.iter().fold(0, |sum: u64, raw| sum.saturating_add(raw.len));
    let mean = bytes / first.len() as u64;
    let aligned =
        || first.iter().all(|raw| raw.len.is_multiple_of(ALIGNED) && raw.offset.is_multiple_of(ALIGNED));
    let odd = match sizes {
        Unit::Sectors => mean > HUGE || aligned(),
        // Sizes of SPC need not be whole sectors.
        Unit::Bytes => defined == [Unit::Bytes; 2] && mean < SECTOR,
    };
    if !odd {
        return Ok(());
    }
    let span = first[first.len() - 1].time.saturating_sub(first[0].time) as f64 / 1e9;
    let per_second = if span > 0.0 { bytes as f64 / span } else { f64::INFINITY };
    Err(TraceError::Implausible { input: input.into(), format, sizes, count: first.len(), mean, per_second })
}

#[cfg(test)]
mod tests {
    use crate::{Format, Input, Options, Request, TraceError, Unit, open_with};

    fn read(text: String, options: &Options) -> Result<Vec<Request>, TraceError> {
        open_with(vec![Input { name: "t".into(), read: Box::new(std::io::Cursor::new(text)) }], options)?
            .collect()
    }

    fn unit(unit: Unit) -> Options {
        Options { unit: Some(unit), ..Options::default() }
    }

    /// Twenty requests of a size, one after another, ten microseconds apart.
    fn ssdsim(size: u64) -> String {
        (0..20).map(|i| format!("{} 0 {} {size} 1\n", i * 10_000, i * size)).collect()
    }

    #[test]
    fn bytes_read_as_sectors_are_refused_until_the_unit_is_named() {
        let error = read(ssdsim(65_536), &Options::default()).unwrap_err();
        let TraceError::Implausible { mean, sizes, per_second, .. } = error else { panic!("{error}") };
        assert_eq!((mean, sizes), (32 << 20, Unit::Sectors));
        // 20 requests of 32 MiB within 190 µs.
        assert!((per_second - 20.0 * f64::from(32 << 20) / 190e-6).abs() < 1.0, "{per_second}");
        assert!(error_text(65_536).contains("32.0 MiB on average, "));
        let requests = read(ssdsim(65_536), &unit(Unit::Bytes)).unwrap();
        assert_eq!((requests[3].offset, requests[3].len), (3 * 65_536, 65_536));
        let requests = read(ssdsim(65_536), &unit(Unit::Sectors)).unwrap();
        assert_eq!((requests[3].offset, requests[3].len), (3 * 65_536 * 512, 32 << 20));
    }

    fn error_text(size: u64) -> String {
        read(ssdsim(size), &Options::default()).unwrap_err().to_string()
    }

    #[test]
    fn small_requests_in_bytes_show_by_their_alignment() {
        assert!(read(ssdsim(512), &Options::default()).is_err());
        assert_eq!(read(ssdsim(8), &Options::default()).unwrap().len(), 20);
        let odd = ssdsim(4096) + "990000 0 7 8 1\n";
        assert_eq!(read(odd, &Options::default()).unwrap().len(), 21, "one that is not a multiple is enough");
    }

    #[test]
    fn sectors_read_as_bytes_are_refused_too() {
        let text: String = (0..20).map(|i| format!("1,R,{},8,{i}\n", i * 8)).collect();
        let error = read(text.clone(), &Options::default()).unwrap_err();
        assert!(matches!(error, TraceError::Implausible { mean: 8, sizes: Unit::Bytes, .. }), "{error}");
        let requests = read(text, &unit(Unit::Sectors)).unwrap();
        assert_eq!((requests[2].offset, requests[2].len), (16 * 512, 4096));
    }

    #[test]
    fn the_two_numbers_of_spc_are_converted_each_from_its_own_unit() {
        let one =
            |unit| read("0,1024,4096,R,1\n".into(), &Options { unit, ..Options::default() }).unwrap()[0];
        assert_eq!((one(None).offset, one(None).len), (1024 * 512, 4096));
        assert_eq!((one(Some(Unit::Bytes)).offset, one(Some(Unit::Bytes)).len), (1024, 4096));
        assert_eq!((one(Some(Unit::Sectors)).offset, one(Some(Unit::Sectors)).len), (1024 * 512, 4096 * 512));
    }

    #[test]
    fn a_format_that_leaves_no_doubt_takes_no_unit() {
        let options = Options { format: Some(Format::Blkparse), ..unit(Unit::Bytes) };
        assert!(matches!(read(String::new(), &options), Err(TraceError::Unit { .. })));
    }
}
