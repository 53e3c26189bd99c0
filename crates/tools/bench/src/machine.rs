//! The machine of a run.

use std::fs;

/// The machine in a line: processor, CPUs, kernel, huge pages.
#[must_use]
pub fn machine() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let model = value(&cpuinfo, "model name").unwrap_or("unknown processor");
    let huge = value(&read("/proc/meminfo"), "HugePages_Total").unwrap_or("0").to_owned();
    let virtual_machine = if cpuinfo.contains("hypervisor") { ", in a virtual machine" } else { "" };
    format!(
        "{cpus} CPUs {model}{virtual_machine}, Linux {}, {huge} huge pages",
        read("/proc/sys/kernel/osrelease").trim()
    )
}

/// The text behind `name` and a colon.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start().strip_prefix(':')?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_cpus_and_kernel() {
        let line = machine();
        assert!(line.contains(" CPUs ") && line.contains("Linux ") && !line.contains('\n'), "{line}");
        assert_eq!(value("model name\t: X Y\n", "model name"), Some("X Y"));
    }
}
