//! The trace formats and their names.

use std::fmt;

/// A trace format. `docs/trace-formats.md` has the layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Linux blktrace, binary, one file per CPU.
    Blktrace,
    /// btrecord's bunches, which btreplay replays.
    Btrecord,
    /// The text of blkparse.
    Blkparse,
    /// Storage Performance Council: `ASU,LBA,size,op,timestamp`.
    Spc,
    /// Microsoft Research Cambridge: `Timestamp,Host,Disk,Type,Offset,Size,ResponseTime`.
    Msr,
    /// HP SRT 1.3 and 1.7.
    Srt,
    /// fio iolog version 2 or 3.
    Fio,
    /// Alibaba block traces: `device_id,opcode,offset,length,timestamp`.
    Alibaba,
    /// Tencent CBS: `timestamp,offset,size,type,volume`.
    Tencent,
    /// VMware vscsi version 1 or 2.
    Vscsi,
    /// Florida International University: `time pid process lba size R/W major minor digest`.
    Fiu,
    /// SSDsim and MQSim: `time device sector sectors operation`.
    SsdSim,
    /// DiskSim ASCII: `time device block blocks flags`.
    DiskSim,
    /// Any table whose columns are given to the reader.
    Csv,
}

/// Every format with its name and the dot-separated parts of file names that suggest it.
const FORMATS: &[(Format, &str, &[&str])] = &[
    (Format::Blktrace, "blktrace", &["blktrace"]),
    (Format::Btrecord, "btrecord", &["replay"]),
    (Format::Blkparse, "blkparse", &["blkparse"]),
    (Format::Spc, "spc", &["spc"]),
    (Format::Msr, "msr", &["msr"]),
    (Format::Srt, "srt", &["srt"]),
    (Format::Fio, "fio", &["fio", "iolog"]),
    (Format::Alibaba, "alibaba", &["alibaba"]),
    (Format::Tencent, "tencent", &["tencent"]),
    (Format::Vscsi, "vscsi", &["vscsi"]),
    (Format::Fiu, "fiu", &["fiu"]),
    (Format::SsdSim, "ssdsim", &["ssdsim"]),
    (Format::DiskSim, "disksim", &["disksim"]),
    (Format::Csv, "csv", &[]),
];

impl Format {
    /// Every format.
    pub fn all() -> impl Iterator<Item = Format> {
        FORMATS.iter().map(|(format, _, _)| *format)
    }

    /// The names of all formats, separated by commas.
    pub fn names() -> String {
        FORMATS.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    /// The format that a file's name suggests, by its last significant part: `x.spc.gz`, `sda.blktrace.0`.
    pub fn of_name(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        lower.rsplit('.').find_map(|part| {
            FORMATS.iter().find(|(_, _, parts)| parts.contains(&part)).map(|(format, _, _)| *format)
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name, _) =
            FORMATS.iter().find(|(format, _, _)| format == self).expect("every format has a name");
        f.write_str(name)
    }
}
