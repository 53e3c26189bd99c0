//! Numbers in readable form.

/// `12 s`, `3 min`, `5 h`.
pub fn time(ms: u64) -> String {
    match ms / 1000 {
        0 => format!("{ms} ms"),
        seconds @ 1..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// `512 KiB`, `1.5 GiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = UNITS.iter().find(|(_, size)| bytes >= *size);
    let Some((unit, size)) = unit else { return format!("{bytes} bytes") };
    let tenths = bytes / (size / 10);
    if tenths.is_multiple_of(10) {
        format!("{} {unit}", tenths / 10)
    } else {
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

/// `1 region`, `2 regions`.
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([time(20), time(1500), time(150_000), time(7_300_000)], ["20 ms", "1 s", "2 min", "2 h"]);
        assert_eq!(
            [bytes(7), bytes(1 << 30), bytes(3 << 19), bytes(2048)],
            ["7 bytes", "1 GiB", "1.5 MiB", "2 KiB"]
        );
        assert_eq!([count(1, "ring"), count(0, "ring")], ["1 ring", "0 rings"]);
    }
}
