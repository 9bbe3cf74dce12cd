//! The arena and what the process holds.
#![allow(clippy::unwrap_used)]

use framefit_kernels::arena::{CACHE_LINE, HUGE_PAGE};
use framefit_kernels::{AllocationFailed, Arena};

#[test]
fn arenas_are_zeroed_and_aligned() {
    for bytes in [0, 1, 63, 64, 4095, 4096, 4097, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 3 * HUGE_PAGE + 12345] {
        let mut arena = Arena::new(bytes).unwrap();
        let alignment = if bytes >= HUGE_PAGE { HUGE_PAGE } else { CACHE_LINE };
        assert_eq!(arena.len(), bytes);
        assert_eq!(arena.bytes().as_ptr().align_offset(alignment), 0, "{bytes}");
        assert!(arena.bytes().iter().all(|byte| *byte == 0), "{bytes}");
        arena.bytes_mut().fill(7);
        assert!(arena.bytes().iter().all(|byte| *byte == 7), "{bytes}");
    }
}

#[test]
fn an_arena_beyond_the_address_space_is_refused() {
    for bytes in [usize::MAX, usize::MAX / 2, isize::MAX as usize] {
        assert_eq!(Arena::new(bytes).err(), Some(AllocationFailed { bytes }));
    }
}

#[test]
fn arenas_lend_disjoint_tensors() {
    let mut arena = Arena::new(4096).unwrap();
    let [a, b] = arena.bytes_mut().get_disjoint_mut([0..64, 64..128]).unwrap();
    bytemuck::cast_slice_mut::<u8, f32>(a).fill(1.0);
    bytemuck::cast_slice_mut::<u8, f64>(b).fill(2.0);
    assert_eq!(bytemuck::cast_slice::<u8, f32>(&arena.bytes()[..64]), [1.0; 16]);
}

#[cfg(target_os = "linux")]
#[test]
fn pages_become_resident_when_written_and_leave_when_released() {
    use framefit_kernels::resident::{peak_resident_bytes, resident_bytes};

    const BYTES: usize = 256 << 20;
    /// What other tests of this process may take and free meanwhile.
    const NOISE: u64 = 64 << 20;
    let before = resident_bytes().unwrap();
    let mut arena = Arena::new(BYTES).unwrap();
    assert!(resident_bytes().unwrap() < before + NOISE);
    arena.bytes_mut().fill(1);
    let full = resident_bytes().unwrap();
    assert!(full + NOISE > before + BYTES as u64);
    assert!(peak_resident_bytes().unwrap() >= full);
    arena.release(0..BYTES);
    assert!(resident_bytes().unwrap() < before + NOISE);
    arena.bytes_mut()[BYTES / 2] = 3;
    assert_eq!(arena.bytes()[BYTES / 2], 3);
}
