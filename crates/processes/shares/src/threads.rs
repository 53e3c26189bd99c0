//! Whether a thread is one of our processes', from `/proc`.

use std::path::Path;

use crate::bounds::ANCESTORS_MAX;

/// Whether the thread of this number, which may be another one by now, is of process `first` or its descendants.
pub(crate) fn is_below(proc: &Path, tid: u32, first: u32) -> bool {
    let mut number = tid;
    for _ in 0..ANCESTORS_MAX {
        let Ok(status) = std::fs::read_to_string(proc.join(format!("{number}/status"))) else { return false };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
        match (field("Tgid:"), field("PPid:")) {
            (Some(process), _) if process == first => return true,
            (_, Some(parent)) if parent > 1 => number = parent,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use lasthop_runtime::thread_sample::{SampledThread, threads_of};

    use super::*;

    #[test]
    fn threads_of_other_processes_are_not_ours() {
        let (proc, own) = (Path::new("/proc"), std::process::id());
        let mut child = std::process::Command::new("sleep").arg("30").spawn().expect("a process");
        assert!(is_below(proc, own, own) && is_below(proc, child.id(), own));
        assert!(threads_of(proc, own).all(|tid| is_below(proc, tid, own)));
        assert!(!is_below(proc, 1, own) && !is_below(proc, own, child.id()));
        assert!(SampledThread::read(proc, child.id(), child.id()).is_some());
        child.kill().and_then(|()| child.wait()).expect("ended");
        assert!(SampledThread::read(proc, child.id(), child.id()).is_none());
        assert_eq!(threads_of(proc, child.id()).count(), 0);
    }
}
