//! Reads a process from /proc.

use std::fs;
use std::io;
use std::path::Path;

use crate::guest_threads::{GUEST_THREADS_MAX, NamedThread, ProcessSnapshot};
use crate::thread::ThreadId;

/// The most threads of a process that are read: a VMM has its vCPUs and some threads for each device.
const PROCESS_THREADS_MAX: usize = 4096;
/// The most listings of a process's threads: where threads come and go all the time, each listing differs.
const LISTINGS_MAX: usize = 4;

impl ProcessSnapshot {
    /// Reads the process `pid`, in the PID namespace of this process. Threads that end meanwhile are left out.
    ///
    /// # Errors
    /// NotFound if it does not exist. This includes 0, which SO_PEERCRED reports for a peer in another PID namespace.
    pub fn read(pid: u32) -> io::Result<Self> {
        let tids = settled(|| numbers_in(Path::new(&format!("/proc/{pid}/task"))))?;
        let named = |tid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
            Some(NamedThread { id: ThreadId::of(*tid).ok()?, name: name.trim_end_matches('\n').to_owned() })
        };
        let threads = tids.iter().filter_map(named).collect();
        let children = tids.iter().flat_map(|tid| children_of(pid, *tid));
        let traced = children.filter(|child| is_traced_by(*child, pid)).take(GUEST_THREADS_MAX);
        Ok(Self { threads, traced: traced.filter_map(|child| ThreadId::of(child).ok()).collect() })
    }
}

/// Lists the threads of a process. A listing misses some if others end meanwhile, so it is repeated until it shows no
/// new one. The result may include threads that have ended.
fn settled(list: impl Fn() -> io::Result<Vec<u32>>) -> io::Result<Vec<u32>> {
    let mut tids = list()?;
    for _ in 1..LISTINGS_MAX {
        let known = tids.len();
        tids.extend(list()?);
        tids.sort_unstable();
        tids.dedup();
        if tids.len() == known {
            break;
        }
    }
    Ok(tids)
}

/// The entries of a directory that are numbers, sorted.
fn numbers_in(directory: &Path) -> io::Result<Vec<u32>> {
    let names = fs::read_dir(directory)?.take(PROCESS_THREADS_MAX).filter_map(Result::ok);
    let mut numbers: Vec<u32> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Empty with a kernel without CONFIG_PROC_CHILDREN.
fn children_of(pid: u32, tid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    text.split_ascii_whitespace().take(PROCESS_THREADS_MAX).filter_map(|number| number.parse().ok()).collect()
}

fn is_traced_by(child: u32, pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
    let tracer = text.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() == pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_threads::{GuestKind, ThreadChoice};

    #[test]
    fn a_thread_that_one_listing_leaves_out_is_found() {
        let listings = std::cell::RefCell::new(vec![vec![1, 2, 4], vec![1, 2, 3], vec![1, 2, 3]]);
        let tids = settled(|| Ok(listings.borrow_mut().remove(0))).unwrap();
        assert_eq!(tids, [1, 2, 3, 4]);
        assert!(listings.borrow().is_empty(), "until there is no other one");
        let count = std::cell::Cell::new(0);
        let changing = settled(|| Ok(vec![count.replace(count.get() + 1)])).unwrap();
        assert_eq!(changing.len(), LISTINGS_MAX);
    }

    #[test]
    fn the_threads_of_this_process_are_read_with_their_names() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (report, reported) = std::sync::mpsc::channel();
        let vcpu = std::thread::Builder::new().name("vcpu0".to_owned());
        let vcpu = vcpu.spawn(move || {
            report.send(ThreadId::current().unwrap()).unwrap();
            let _ = ended.recv();
        });
        let id = reported.recv().unwrap();
        let guest =
            ProcessSnapshot::read(std::process::id()).unwrap().guest_threads(&ThreadChoice::Auto).unwrap();
        assert_eq!((guest.kind, guest.threads), (GuestKind::Vmm, vec![id]));
        drop(end);
        vcpu.unwrap().join().unwrap();
    }

    #[test]
    fn a_peer_of_another_pid_namespace_is_no_process() {
        assert_eq!(ProcessSnapshot::read(0).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
