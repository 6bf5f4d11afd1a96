//! Page-aligned memory for direct I/O.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ptr::{self, NonNull};

/// Zeroed memory of whole pages; a page uses memory only once it is touched.
pub(super) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Pages {}

impl Pages {
    /// `len` is not zero.
    pub fn new(len: usize) -> io::Result<Pages> {
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        let start = NonNull::new(start.cast()).expect("the kernel does not map page zero unasked");
        Ok(Pages { start, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of byte `at`, which must exist.
    pub fn at(&self, at: usize) -> *mut u8 {
        assert!(at < self.len);
        // SAFETY: within the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable and initialised (zeros), and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no other code refers to it through safe code.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and is not used any more. It cannot fail for a whole mapping.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Fills memory with bytes that neither compress nor repeat. `offset`: where they will be written.
pub(super) fn fill(offset: u64, bytes: &mut [u8]) {
    ebb_bench::content::fill(0, offset, 1, bytes);
}
