//! A mutable slice that the tasks of one run write in disjoint parts.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice lent to all tasks of a run at once.
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    lent: PhantomData<&'a mut [T]>,
}

// SAFETY: the slice is exclusively borrowed for 'a, and every access goes through `part`, whose caller
// promises that parts used at the same time are disjoint; elements then move between threads, hence `Send`.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), lent: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    ///
    /// While the returned slice is in use, no other part that overlaps `range` may be.
    ///
    /// Panics when `range` leaves the slice.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range lies in the slice, and the caller keeps parts in use disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }

    /// Elements of the slice.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of the first element. Elements written through it must be disjoint from parts in use.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn start(&self) -> *mut T {
        self.start
    }
}
