//! What the process holds in memory, as the system counts it.

/// Bytes of this process that are resident now; `None` where the system does not say.
pub fn resident_bytes() -> Option<u64> {
    system::status("VmRSS:")
}

/// The most bytes that were resident at any time since the start, or since [`reset_peak`].
pub fn peak_resident_bytes() -> Option<u64> {
    system::peak()
}

/// Makes the peak start again from what is resident now; whether the system did.
pub fn reset_peak() -> bool {
    system::reset_peak()
}

/// Gives memory that is free but still held by the allocator back to the system, where the allocator can.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim touches only memory that is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(target_os = "linux")]
mod system {
    pub(super) fn status(field: &str) -> Option<u64> {
        let text = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(field))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024)
    }

    pub(super) fn peak() -> Option<u64> {
        status("VmHWM:")
    }

    pub(super) fn reset_peak() -> bool {
        std::fs::write("/proc/self/clear_refs", "5").is_ok()
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
mod system {
    pub(super) fn status(_: &str) -> Option<u64> {
        None
    }

    pub(super) fn peak() -> Option<u64> {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: getrusage writes one rusage to the pointer it is given.
        let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0;
        if failed {
            return None;
        }
        // SAFETY: zeroed is a valid rusage, and the call filled it.
        let peak = u64::try_from(unsafe { usage.assume_init() }.ru_maxrss).ok()?;
        let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
        Some(peak * unit)
    }

    pub(super) fn reset_peak() -> bool {
        false
    }
}

#[cfg(not(unix))]
mod system {
    pub(super) fn status(_: &str) -> Option<u64> {
        None
    }

    pub(super) fn peak() -> Option<u64> {
        None
    }

    pub(super) fn reset_peak() -> bool {
        false
    }
}
