//! A SATA drive: its temperature from the kernel module drivetemp, its power state from the ATA command CHECK POWER
//! MODE, sent through SCSI pass-through, which requires root. The command does not wake a drive in standby.

use super::hwmon::Sensors;
use super::spec::Spec;
use super::sysfs::{self, Machine};
use super::{Channel, Meter, MeterError, Quantity, Source};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `struct sg_io_hdr` of scsi/sg.h.
#[repr(C)]
struct SgIo {
    interface_id: i32,
    direction: i32,
    cmd_len: u8,
    mx_sb_len: u8,
    iovec_count: u16,
    dxfer_len: u32,
    dxferp: *mut libc::c_void,
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
const TIMEOUT_MILLIS: u32 = 5_000;
/// ATA PASS-THROUGH (16), no data, registers wanted back, CHECK POWER MODE.
const CHECK_POWER_MODE: [u8; 16] = [0x85, 3 << 1, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xe5, 0];

/// The answer to CHECK POWER MODE: 0 standby, 128 idle, 255 active or idle.
fn power_mode(drive: &File) -> io::Result<f64> {
    let mut sense = [0u8; 32];
    let mut header = SgIo {
        interface_id: i32::from(b'S'),
        direction: NO_DATA,
        cmd_len: CHECK_POWER_MODE.len() as u8,
        mx_sb_len: sense.len() as u8,
        iovec_count: 0,
        dxfer_len: 0,
        dxferp: std::ptr::null_mut(),
        cmdp: CHECK_POWER_MODE.as_ptr(),
        sbp: sense.as_mut_ptr(),
        timeout: TIMEOUT_MILLIS,
        flags: 0,
        pack_id: 0,
        usr_ptr: std::ptr::null_mut(),
        status: 0,
        masked_status: 0,
        msg_status: 0,
        sb_len_wr: 0,
        host_status: 0,
        driver_status: 0,
        resid: 0,
        duration: 0,
        info: 0,
    };
    // SAFETY: the header has the kernel's layout; its pointers are to the command and to `mx_sb_len` bytes, which live on.
    if unsafe { libc::ioctl(drive.as_raw_fd(), SG_IO, &mut header as *mut SgIo) } == -1 {
        return Err(io::Error::last_os_error());
    }
    mode_of(&sense[..usize::from(header.sb_len_wr).min(sense.len())])
        .ok_or_else(|| io::Error::other("the drive does not say: it is no ATA drive, or its bridge hides it"))
}

/// The sector count register in the ATA status return descriptor of the sense data.
fn mode_of(sense: &[u8]) -> Option<f64> {
    let is_descriptor = matches!(sense.first()? & 0x7f, 0x72 | 0x73);
    let descriptor = sense.get(8..22)?;
    (is_descriptor && descriptor[0] == 0x09 && descriptor[1] >= 0x0c && descriptor[3] & 0x01 == 0)
        .then(|| f64::from(descriptor[5]))
}

struct Ata {
    channels: Vec<Channel>,
    drive: Option<File>,
    sensors: Option<Sensors>,
}

/// Disks that may be ATA drives.
pub(super) fn disks(machine: &Machine) -> Vec<String> {
    let names = sysfs::names(&machine.sys.join("block"));
    names.into_iter().filter(|name| name.starts_with("sd")).collect()
}

pub(super) fn open(machine: &Machine, spec: &mut Spec) -> Result<Box<dyn Meter>, MeterError> {
    let address = spec.needed("the drive, such as /dev/sda")?;
    let name = address.strip_prefix("/dev/").unwrap_or(&address).to_string();
    let in_sysfs = machine.sys.join("block").join(&name);
    if name.contains('/') || name.starts_with('.') || !in_sysfs.is_dir() {
        return Err(spec.unavailable(
            format!("this machine has no drive {name}"),
            "give the whole drive, such as /dev/sda, not a partition",
        ));
    }
    let chips = in_sysfs.join("device/hwmon");
    let chip = sysfs::names(&chips).into_iter().next();
    let sensors = chip.map(|chip| Sensors::of_chip(&chips.join(chip), &name, "temp")).transpose()?;
    let sensors = sensors.filter(|sensors| !sensors.channels().is_empty());
    let drive = File::open(machine.dev.join(&name)).and_then(|drive| power_mode(&drive).map(|_| drive));
    let mut channels = Vec::new();
    match (&sensors, &drive) {
        (None, Err(error)) => {
            return Err(spec.unavailable(
                format!("no temperature in hwmon, and no power state: {error}"),
                "load the module drivetemp for the temperature, and run as root for the power state",
            ));
        }
        (Some(sensors), _) => channels.extend_from_slice(sensors.channels()),
        (None, Ok(_)) => {}
    }
    if drive.is_ok() {
        channels.push(Channel {
            name: "power-state".into(),
            quantity: Quantity::PowerState,
            source: Source::Measured,
            part_of: None,
            sees: "answer to CHECK POWER MODE: 0 standby, 128 to 131 idle, 255 active".into(),
        });
    }
    Ok(Box::new(Ata { channels, drive: drive.ok(), sensors }))
}

impl Meter for Ata {
    fn channels(&self) -> &[Channel] {
        &self.channels
    }

    fn read(&mut self) -> Result<Vec<Option<f64>>, MeterError> {
        let mut readings = self.sensors.as_mut().map_or(Ok(Vec::new()), |sensors| sensors.read())?;
        if let Some(drive) = &self.drive {
            readings.push(power_mode(drive).ok());
        }
        Ok(readings)
    }
}

#[cfg(test)]
mod tests {
    use super::super::open_on;
    use super::super::tests::{machine, write};
    use super::*;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_header_has_the_kernels_layout() {
        assert_eq!(size_of::<SgIo>(), 88);
        assert_eq!(std::mem::offset_of!(SgIo, sbp), 32);
        assert_eq!(std::mem::offset_of!(SgIo, usr_ptr), 56);
        assert_eq!(std::mem::offset_of!(SgIo, info), 80);
    }

    #[test]
    fn the_sense_data_is_decoded() {
        let mut sense = [0u8; 22];
        sense[0] = 0x72;
        sense[8..10].copy_from_slice(&[0x09, 0x0c]);
        sense[13] = 0x80;
        assert_eq!(mode_of(&sense), Some(128.0));
        sense[13] = 0;
        assert_eq!(mode_of(&sense), Some(0.0));
        assert_eq!(mode_of(&sense[..21]), None);
        assert_eq!(mode_of(&[]), None);
        // The error bit: the drive did not understand the command.
        sense[11] = 1;
        assert_eq!(mode_of(&sense), None);
    }

    #[test]
    fn a_drive_has_its_temperature_from_drivetemp() {
        let (dir, machine) = machine();
        write(&dir, "sys/block/sda/size", "1");
        let error = open_on(&machine, "ata:/dev/sda").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("drivetemp"), "{error}");
        write(&dir, "sys/block/sda/device/hwmon/hwmon4/name", "drivetemp");
        write(&dir, "sys/block/sda/device/hwmon/hwmon4/temp1_input", "33000");
        let mut open = open_on(&machine, "ata:/dev/sda").unwrap();
        assert_eq!(open.meter.channels()[0].name, "sda/temp1");
        assert_eq!(open.meter.read().unwrap(), [Some(33.0)]);
        let error = open_on(&machine, "ata:/dev/../etc").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("no drive"), "{error}");
    }
}
