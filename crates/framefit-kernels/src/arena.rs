//! The one allocation that all tensors of a schedule live in.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

/// The alignment of an arena of at least this size, in bytes: a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// The alignment of a smaller arena, in bytes: a cache line, and the widest vector register.
pub const CACHE_LINE: usize = 64;

/// A block of zeroed bytes. Pages become resident when first written.
///
/// From [`HUGE_PAGE`] bytes on, it starts at a multiple of that and asks the system for huge pages; below, it
/// starts at a multiple of at least [`CACHE_LINE`].
pub struct Arena {
    start: NonNull<u8>,
    len: usize,
}

/// The system refused the memory of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationFailed {
    /// The size that was asked for.
    pub bytes: usize,
}

impl fmt::Display for AllocationFailed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the system refused an arena of {} bytes", self.bytes)
    }
}

impl std::error::Error for AllocationFailed {}

// SAFETY: the arena owns its bytes; access follows the borrow of the arena.
unsafe impl Send for Arena {}
// SAFETY: as above; a shared arena only lends shared bytes.
unsafe impl Sync for Arena {}

impl fmt::Debug for Arena {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Arena").field("bytes", &self.len).finish()
    }
}

impl Arena {
    /// An arena of `bytes` zeroed bytes.
    pub fn new(bytes: usize) -> Result<Arena, AllocationFailed> {
        if bytes == 0 {
            return Ok(Arena { start: NonNull::<Line>::dangling().cast(), len: 0 });
        }
        let start = system::allocate(bytes).ok_or(AllocationFailed { bytes })?;
        Ok(Arena { start, len: bytes })
    }

    /// The size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes (zeroed when allocated) as long as self lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// All bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the exclusive borrow of self makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Gives the whole pages inside `range` back to the system where it takes them; afterwards the bytes of
    /// `range` are unspecified (zero or as they were) until written.
    pub fn release(&mut self, range: Range<usize>) {
        let Some(part) = self.bytes_mut().get_mut(range) else {
            return;
        };
        system::release(part);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.len > 0 {
            system::free(self.start, self.len);
        }
    }
}

/// Only its alignment matters.
#[repr(align(64))]
struct Line;

fn alignment(bytes: usize) -> usize {
    if bytes >= HUGE_PAGE { HUGE_PAGE } else { CACHE_LINE }
}

#[cfg(unix)]
mod system {
    use super::{HUGE_PAGE, alignment};
    use std::ptr::NonNull;

    fn page() -> usize {
        // SAFETY: sysconf has no preconditions.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).ok().filter(|size| *size > 0).unwrap_or(4096)
    }

    fn mapped(bytes: usize) -> Option<usize> {
        bytes.checked_next_multiple_of(page())
    }

    pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
        let len = mapped(bytes)?;
        let slack = if alignment(bytes) > page() { HUGE_PAGE } else { 0 };
        let total = len.checked_add(slack)?;
        if isize::try_from(total).is_err() {
            return None;
        }
        // SAFETY: a new anonymous private mapping touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                total,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = base.cast::<u8>();
        let head = if slack == 0 { 0 } else { base.align_offset(HUGE_PAGE) };
        let tail = slack.checked_sub(head)?;
        // SAFETY: head + len + tail is the mapping; all cuts lie on page borders, and what is unmapped is
        // not used again.
        unsafe {
            if head > 0 {
                libc::munmap(base.cast(), head);
            }
            if tail > 0 {
                libc::munmap(base.add(head + len).cast(), tail);
            }
            let start = base.add(head);
            #[cfg(target_os = "linux")]
            if slack > 0 {
                // A refusal costs speed only.
                libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE);
            }
            NonNull::new(start)
        }
    }

    pub(super) fn free(start: NonNull<u8>, bytes: usize) {
        if let Some(len) = mapped(bytes) {
            // SAFETY: the mapping of `allocate(bytes)` has exactly this start and length, and its owner is
            // being dropped.
            unsafe {
                libc::munmap(start.as_ptr().cast(), len);
            }
        }
    }

    pub(super) fn release(part: &mut [u8]) {
        let head = part.as_ptr().align_offset(page());
        if head >= part.len() {
            return;
        }
        let len = (part.len() - head) / page() * page();
        if len == 0 {
            return;
        }
        // SAFETY: whole pages of an anonymous private mapping that is exclusively borrowed; they stay mapped
        // and read as zero (or as before, where the system ignores the advice).
        unsafe {
            libc::madvise(part.as_mut_ptr().add(head).cast(), len, libc::MADV_DONTNEED);
        }
    }
}

#[cfg(not(unix))]
mod system {
    use super::alignment;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes, alignment(bytes)).ok()?;
        // SAFETY: the caller asks for at least one byte.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    pub(super) fn free(start: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = Layout::from_size_align(bytes, alignment(bytes)) {
            // SAFETY: allocated above with the same layout.
            unsafe { dealloc(start.as_ptr(), layout) }
        }
    }

    pub(super) fn release(_: &mut [u8]) {}
}
