//! Keeps freed memory for the next request.
//!
//! By default the C library gives a freed buffer of a megabyte back to the kernel at once, and the next request pays to get
//! its pages again, one fault each: with them a 1 MiB GET cost 1.7 ms of CPU over all servers, without them 1.0 ms.

/// Buffers up to this size come from the heap, not from a mapping of their own.
#[cfg(target_env = "gnu")]
const FROM_HEAP: std::ffi::c_int = 32 << 20;
/// Free memory at the heap's end that is kept.
#[cfg(target_env = "gnu")]
const KEEP: std::ffi::c_int = 8 << 20;

/// Call it once, first thing.
#[cfg(target_env = "gnu")]
pub fn keep_freed_memory() {
    use std::ffi::c_int;
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    const M_TRIM_THRESHOLD: c_int = -1;
    const M_MMAP_THRESHOLD: c_int = -3;
    // SAFETY: it only sets two numbers of the allocator, before any other thread runs. It may refuse: then all stays as it was.
    unsafe {
        mallopt(M_TRIM_THRESHOLD, KEEP);
        mallopt(M_MMAP_THRESHOLD, FROM_HEAP);
    }
}

/// Other C libraries have other allocators.
#[cfg(not(target_env = "gnu"))]
pub fn keep_freed_memory() {}
