//! What this process uses, as the kernel counts it.

use super::{Page, names};
use rustix::time::{ClockId, clock_gettime};

/// A page with what this process uses.
pub fn of_process() -> Page {
    let mut page = Page::default();
    page.put(names::BUILD, &[&env!("CARGO_PKG_VERSION")], 1.0);
    let used = clock_gettime(ClockId::ProcessCPUTime);
    page.put(names::PROCESS_CPU, &[], used.tv_sec as f64 + used.tv_nsec as f64 / 1e9);
    let status = std::fs::read_to_string("/proc/self/status").ok();
    page.put_known(names::PROCESS_MEMORY, &[], status.as_deref().and_then(resident_bytes));
    page
}

/// The line `VmRSS:   1234 kB`.
fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_is_read_where_the_kernel_says_it() {
        assert_eq!(super::resident_bytes("Name:\tebb\nVmRSS:\t    1234 kB\n"), Some(1234.0 * 1024.0));
        assert_eq!(super::resident_bytes("Name:\tebb\n"), None);
    }
}
