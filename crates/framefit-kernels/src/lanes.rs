//! A vector register of `f32` lanes, so that one loop serves several instruction sets.
//!
//! The functions are `unsafe` because the instruction set must be there; a body written over [`Lanes`] is
//! `#[inline(always)]` and is only called from a function with the matching `#[target_feature]`.

use std::arch::x86_64::*;

/// A register of `WIDTH` lanes.
///
/// # Safety
///
/// Every function needs the register's instruction set; those that take a pointer need `WIDTH` (or `count`)
/// elements there.
pub(crate) trait Lanes: Copy {
    /// Lanes.
    const WIDTH: usize;

    unsafe fn zero() -> Self;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    /// The first `count` lanes; the others are zero and their memory is not read.
    unsafe fn load_part(from: *const f32, count: usize) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// The first `count` lanes; the memory of the others is not written.
    unsafe fn store_part(self, to: *mut f32, count: usize);
    /// self · a + b.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// max(0, self); NaN stays NaN.
    unsafe fn relu(self) -> Self;
    /// The sum of all lanes, in a fixed order.
    unsafe fn sum(self) -> f32;
    /// In each lane `x` where it is greater or NaN, else self.
    unsafe fn take_greater(self, x: Self) -> Self;
    /// (self where a = b else 0, 0 where a = b else self).
    unsafe fn split_equal(self, a: Self, b: Self) -> (Self, Self);
    /// self where `x` > 0, else 0.
    unsafe fn where_positive(self, x: Self) -> Self;
    /// Whether any lane is NaN.
    unsafe fn any_nan(self) -> bool;
}

/// Sixteen lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

impl Lanes for Avx512 {
    const WIDTH: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe { Avx512(_mm512_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe { Avx512(_mm512_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller has the instruction set and 16 elements there.
        unsafe { Avx512(_mm512_loadu_ps(from)) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        // SAFETY: the caller has the instruction set; the mask keeps to `count` elements.
        unsafe { Avx512(_mm512_maskz_loadu_ps(mask(count), from)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller has the instruction set and 16 elements there.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        // SAFETY: the caller has the instruction set; the mask keeps to `count` elements.
        unsafe { _mm512_mask_storeu_ps(to, mask(count), self.0) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe { Avx512(_mm512_fmadd_ps(self.0, a.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe { Avx512(_mm512_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // The second operand is returned when either is NaN.
        // SAFETY: the caller has the instruction set.
        unsafe { Avx512(_mm512_max_ps(_mm512_setzero_ps(), self.0)) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller has the instruction set.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn take_greater(self, x: Self) -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe {
            let wins = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x.0, self.0) | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x.0, x.0);
            Avx512(_mm512_mask_mov_ps(self.0, wins, x.0))
        }
    }
    #[inline(always)]
    unsafe fn split_equal(self, a: Self, b: Self) -> (Self, Self) {
        // SAFETY: the caller has the instruction set.
        unsafe {
            let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a.0, b.0);
            (Avx512(_mm512_maskz_mov_ps(equal, self.0)), Avx512(_mm512_maskz_mov_ps(!equal, self.0)))
        }
    }
    #[inline(always)]
    unsafe fn where_positive(self, x: Self) -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe {
            let positive = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x.0, _mm512_setzero_ps());
            Avx512(_mm512_maskz_mov_ps(positive, self.0))
        }
    }
    #[inline(always)]
    unsafe fn any_nan(self) -> bool {
        // SAFETY: the caller has the instruction set.
        unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0) != 0 }
    }
}

#[inline(always)]
fn mask(count: usize) -> u16 {
    ((1_u32 << count) - 1) as u16
}

/// Eight lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

/// Eight ones before eight zeros: a window into it is the mask of the first lanes.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// # Safety
///
/// Needs AVX.
#[inline(always)]
unsafe fn mask256(count: usize) -> __m256i {
    debug_assert!(count <= 8);
    // SAFETY: the caller has AVX; eight elements follow any start of 0 to 8.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - count).cast()) }
}

impl Lanes for Avx2 {
    const WIDTH: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe { Avx2(_mm256_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe { Avx2(_mm256_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller has the instruction set and 8 elements there.
        unsafe { Avx2(_mm256_loadu_ps(from)) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        // SAFETY: the caller has the instruction set; the mask keeps to `count` elements.
        unsafe { Avx2(_mm256_maskload_ps(from, mask256(count))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller has the instruction set and 8 elements there.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        // SAFETY: the caller has the instruction set; the mask keeps to `count` elements.
        unsafe { _mm256_maskstore_ps(to, mask256(count), self.0) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe { Avx2(_mm256_fmadd_ps(self.0, a.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe { Avx2(_mm256_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // The second operand is returned when either is NaN.
        // SAFETY: the caller has the instruction set.
        unsafe { Avx2(_mm256_max_ps(_mm256_setzero_ps(), self.0)) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller has the instruction set.
        unsafe {
            let half = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
    #[inline(always)]
    unsafe fn take_greater(self, x: Self) -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe {
            let greater = _mm256_cmp_ps::<_CMP_GT_OQ>(x.0, self.0);
            let wins = _mm256_or_ps(greater, _mm256_cmp_ps::<_CMP_UNORD_Q>(x.0, x.0));
            Avx2(_mm256_blendv_ps(self.0, x.0, wins))
        }
    }
    #[inline(always)]
    unsafe fn split_equal(self, a: Self, b: Self) -> (Self, Self) {
        // SAFETY: the caller has the instruction set.
        unsafe {
            let equal = _mm256_cmp_ps::<_CMP_EQ_OQ>(a.0, b.0);
            (Avx2(_mm256_and_ps(equal, self.0)), Avx2(_mm256_andnot_ps(equal, self.0)))
        }
    }
    #[inline(always)]
    unsafe fn where_positive(self, x: Self) -> Self {
        // SAFETY: the caller has the instruction set.
        unsafe { Avx2(_mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(x.0, _mm256_setzero_ps()), self.0)) }
    }
    #[inline(always)]
    unsafe fn any_nan(self) -> bool {
        // SAFETY: the caller has the instruction set.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0)) != 0 }
    }
}
