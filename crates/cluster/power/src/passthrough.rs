//! Commands to a drive past the file system: NVMe admin commands, and SCSI commands, which carry ATA commands, too.
//! Both need root. This is the only place that speaks to the kernel about them; what uses it is tested on emulated
//! drives.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// An NVMe admin command; what it has no field for is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdminCommand {
    pub opcode: u8,
    pub nsid: u32,
    pub cdw10: u32,
    pub cdw11: u32,
}

/// A drive that takes NVMe admin commands.
pub trait Admin {
    /// Carries out one command, which fills `data`, and returns dword 0 of its completion.
    fn admin(&self, command: AdminCommand, data: &mut [u8], timeout: Duration) -> io::Result<u32>;
}

/// How a SCSI command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScsiEnd {
    /// 0: good; 2: the sense data says what happened.
    pub status: u8,
    pub sense: Vec<u8>,
    /// Bytes of `data` that the drive filled.
    pub received: usize,
}

/// A drive that takes SCSI commands.
pub trait Scsi {
    /// Carries out one command, which fills `data`. An error is the kernel's: the drive was not reached, or did not
    /// answer.
    fn scsi(&self, command: &[u8], data: &mut [u8], timeout: Duration) -> io::Result<ScsiEnd>;
}

/// `struct nvme_passthru_cmd` of linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Default)]
struct NvmePassthru {
    opcode: u8,
    flags: u8,
    rsvd1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

/// `NVME_IOCTL_ADMIN_CMD`: read and write, type `N`, number 0x41, the size of the command.
const ADMIN: libc::Ioctl =
    ((3 << 30) | (size_of::<NvmePassthru>() << 16) | ((b'N' as usize) << 8) | 0x41) as _;

/// `struct sg_io_hdr` of scsi/sg.h.
#[repr(C)]
struct SgIo {
    interface_id: i32,
    direction: i32,
    cmd_len: u8,
    mx_sb_len: u8,
    iovec_count: u16,
    dxfer_len: u32,
    dxferp: *mut u8,
    cmdp: *const u8,
    sbp: *mut u8,
    timeout: u32,
    flags: u32,
    pack_id: i32,
    usr_ptr: *mut libc::c_void,
    status: u8,
    masked_status: u8,
    msg_status: u8,
    sb_len_wr: u8,
    host_status: u16,
    driver_status: u16,
    resid: i32,
    duration: u32,
    info: u32,
}

const SG_IO: libc::Ioctl = 0x2285;
const NO_DATA: i32 = -1;
const FROM_DRIVE: i32 = -3;
const SENSE_BYTES: usize = 64;

/// Whole milliseconds, at least one: zero would be the kernel's own timeout.
fn millis(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1)
}

fn ioctl<T>(drive: &File, request: libc::Ioctl, argument: &mut T) -> io::Result<i32> {
    // SAFETY: both callers pass the structure that the request takes, in the kernel's layout; its pointers are to
    // memory that they hold until this returns, with the lengths that the structure names.
    match unsafe { libc::ioctl(drive.as_raw_fd(), request, argument as *mut T) } {
        -1 => Err(io::Error::last_os_error()),
        status => Ok(status),
    }
}

impl Admin for File {
    fn admin(&self, command: AdminCommand, data: &mut [u8], timeout: Duration) -> io::Result<u32> {
        let AdminCommand { opcode, nsid, cdw10, cdw11 } = command;
        let mut command = NvmePassthru {
            opcode,
            nsid,
            addr: if data.is_empty() { 0 } else { data.as_mut_ptr() as u64 },
            data_len: u32::try_from(data.len()).expect("callers ask for a page"),
            cdw10,
            cdw11,
            timeout_ms: millis(timeout),
            ..NvmePassthru::default()
        };
        match ioctl(self, ADMIN, &mut command)? {
            0 => Ok(command.result),
            status => Err(io::Error::other(format!("the drive refused with NVMe status {status:#x}"))),
        }
    }
}

impl Scsi for File {
    fn scsi(&self, command: &[u8], data: &mut [u8], timeout: Duration) -> io::Result<ScsiEnd> {
        let mut sense = [0u8; SENSE_BYTES];
        let mut header = SgIo {
            interface_id: i32::from(b'S'),
            direction: if data.is_empty() { NO_DATA } else { FROM_DRIVE },
            cmd_len: u8::try_from(command.len()).expect("a command has up to 16 bytes"),
            mx_sb_len: SENSE_BYTES as u8,
            dxfer_len: u32::try_from(data.len()).expect("callers ask for a sector"),
            dxferp: if data.is_empty() { std::ptr::null_mut() } else { data.as_mut_ptr() },
            cmdp: command.as_ptr(),
            sbp: sense.as_mut_ptr(),
            timeout: millis(timeout),
            // SAFETY: a structure of plain numbers and pointers, for which zero is valid.
            ..unsafe { std::mem::zeroed() }
        };
        ioctl(self, SG_IO, &mut header)?;
        if header.host_status != 0 {
            return Err(io::Error::other(format!(
                "the drive did not answer within {timeout:?} (host status {})",
                header.host_status
            )));
        }
        let left = usize::try_from(header.resid).unwrap_or(0);
        Ok(ScsiEnd {
            status: header.status,
            sense: sense[..usize::from(header.sb_len_wr).min(SENSE_BYTES)].to_vec(),
            received: data.len().saturating_sub(left),
        })
    }
}

/// ATA PASS-THROUGH (16), no data, registers wanted back, CHECK POWER MODE. It does not wake a drive in standby.
const CHECK_POWER_MODE: [u8; 16] = [0x85, 3 << 1, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xe5, 0];

/// The answer of an ATA drive to CHECK POWER MODE: 0 standby, 128 to 131 idle, 255 active or idle.
pub fn ata_power_mode(drive: &impl Scsi, timeout: Duration) -> io::Result<u8> {
    let end = drive.scsi(&CHECK_POWER_MODE, &mut [], timeout)?;
    mode_of(&end.sense).ok_or_else(|| {
        io::Error::other("the drive does not report it: it is not an ATA drive, or its bridge hides it")
    })
}

/// The sector count register in the ATA status return descriptor of the sense data.
fn mode_of(sense: &[u8]) -> Option<u8> {
    let is_descriptor = matches!(sense.first()? & 0x7f, 0x72 | 0x73);
    let descriptor = sense.get(8..22)?;
    (is_descriptor && descriptor[0] == 0x09 && descriptor[1] >= 0x0c && descriptor[3] & 0x01 == 0)
        .then(|| descriptor[5])
}

/// Get Features of NVMe: the number of the power state that the drive is in; 0 draws most.
pub fn nvme_power_state(drive: &impl Admin, timeout: Duration) -> io::Result<u8> {
    let command = AdminCommand { opcode: 0x0a, cdw10: 0x02, ..AdminCommand::default() };
    // Bits 5 to 7 are the workload hint.
    Ok((drive.admin(command, &mut [], timeout)? & 0x1f) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_structures_have_the_kernels_layout() {
        assert_eq!(size_of::<SgIo>(), 88);
        assert_eq!(std::mem::offset_of!(SgIo, sbp), 32);
        assert_eq!(std::mem::offset_of!(SgIo, usr_ptr), 56);
        assert_eq!(std::mem::offset_of!(SgIo, info), 80);
        assert_eq!(size_of::<NvmePassthru>(), 72);
        assert_eq!(ADMIN, 0xc048_4e41);
    }

    #[test]
    fn the_sense_data_is_decoded() {
        let mut sense = [0u8; 22];
        sense[0] = 0x72;
        sense[8..10].copy_from_slice(&[0x09, 0x0c]);
        sense[13] = 0x80;
        assert_eq!(mode_of(&sense), Some(128));
        sense[13] = 0;
        assert_eq!(mode_of(&sense), Some(0));
        assert_eq!(mode_of(&sense[..21]), None);
        assert_eq!(mode_of(&[]), None);
        // The error bit: the drive did not understand the command.
        sense[11] = 1;
        assert_eq!(mode_of(&sense), None);
    }

    #[test]
    fn a_file_takes_no_commands() {
        let file = tempfile::tempfile().unwrap();
        let timeout = Duration::from_secs(1);
        assert!(file.admin(AdminCommand::default(), &mut [0; 4096], timeout).is_err());
        assert!(file.scsi(&[0; 6], &mut [], timeout).is_err());
    }
}
