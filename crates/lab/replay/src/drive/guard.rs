//! Whether a block device, or a device-like export, holds data.

use super::error::TargetError;

/// Bytes examined at either end. All signatures of file systems, partition tables and volume managers are there.
pub(super) const LOOKED_AT: usize = 1 << 20;

/// Offset, bytes and meaning of each signature.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (512, b"EFI PART", "a GPT partition table"),
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x1_0040, b"_BHRfS_M", "a Btrfs file system"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (512, b"LABELONE", "a physical volume of LVM"),
    (4086, b"SWAPSPACE2", "swap space"),
    (3, b"NTFS    ", "an NTFS file system"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID"),
    (510, b"\x55\xaa", "a partition table or a boot sector"),
];

/// Refuses a target whose first or last bytes are not all zero, and names what it seems to hold.
pub(super) fn empty(target: &str, first: &[u8], last: &[u8]) -> Result<(), TargetError> {
    let refuse =
        |found: &str| Err(TargetError::NotEmpty { target: target.to_owned(), found: found.to_owned() });
    let found = SIGNATURES.iter().find(|(at, bytes, _)| first.get(*at..*at + bytes.len()) == Some(*bytes));
    if let Some((_, _, name)) = found {
        return refuse(name);
    }
    if first.iter().chain(last).any(|byte| *byte != 0) {
        return refuse("data");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_zeros_are_empty_and_signatures_are_called_by_name() {
        let blank = vec![0; LOOKED_AT];
        empty("x", &blank, &blank).unwrap();
        empty("x", &[], &[]).unwrap();
        for (at, bytes, name) in SIGNATURES {
            let mut first = blank.clone();
            first[*at..*at + bytes.len()].copy_from_slice(bytes);
            let error = empty("x", &first, &blank).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("--overwrite"), "{error}");
        }
        let mut last = blank.clone();
        last[LOOKED_AT - 1] = 1;
        assert!(empty("x", &blank, &last).unwrap_err().to_string().contains("data"));
        assert!(empty("x", &[0, 7], &[]).is_err());
    }
}
