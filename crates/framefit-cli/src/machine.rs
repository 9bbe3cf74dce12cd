//! What this machine has free.

use framefit::core::Bytes;

/// Memory that a process can have without pushing others out, where the system tells.
pub fn free_memory() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let system = available(&text)?;
    Some(group_room().map_or(system, |room| system.min(room)))
}

/// `MemAvailable` of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes.saturating_mul(1024)))
}

/// What the limit of a container leaves; nothing where there is no limit.
fn group_room() -> Option<Bytes> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let (limit, used) = (read("memory.max")?, read("memory.current")?);
    Some(Bytes(limit.saturating_sub(used)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_available_memory_is_read() {
        let text = "MemTotal:       24689764 kB\nMemFree:  1 kB\nMemAvailable:   22097388 kB\nBuffers: 2 kB\n";
        assert_eq!(available(text), Some(Bytes(22_097_388 * 1024)));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
    }
}
