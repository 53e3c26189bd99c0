//! How a front end maps its guest's memory (proc(5), maps): shared with the switch, or as a private copy.

use std::collections::BTreeSet;

use lasthop_api::facts::FileFacts;
use lasthop_runtime::procfs;

/// How files are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mapped {
    Shared,
    Private,
}

/// How a process maps these files; `None` if it maps none of them, or access is denied. One shared mapping is enough: a
/// private one may be left from the start.
pub(super) fn of_process(pid: i32, files: &[FileFacts]) -> Option<Mapped> {
    mapped(&procfs::text(pid, "maps")?, files)
}

fn mapped(maps: &str, files: &[FileFacts]) -> Option<Mapped> {
    let device = |file: &FileFacts| {
        format!("{:02x}:{:02x}", rustix::fs::major(file.device), rustix::fs::minor(file.device))
    };
    let wanted: BTreeSet<(String, u64)> = files.iter().map(|file| (device(file), file.inode)).collect();
    // START-END PERMISSIONS OFFSET DEVICE INODE PATH
    let of_files = maps.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (permissions, _offset, device) = (words.next()?, words.next()?, words.next()?);
        let inode = words.next()?.parse().ok()?;
        wanted.contains(&(device.to_owned(), inode)).then_some(permissions)
    });
    let kinds: Vec<&str> = of_files.collect();
    match kinds.iter().any(|permissions| permissions.ends_with('s')) {
        true => Some(Mapped::Shared),
        false => (!kinds.is_empty()).then_some(Mapped::Private),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_device_and_inode() {
        let line = |permissions: &str, device: &str, inode: u64| {
            format!(
                "7f0000000000-7f0000100000 {permissions} 00000000 {device} {inode}    /memfd:mem (deleted)\n"
            )
        };
        let file = |inode| FileFacts { device: rustix::fs::makedev(0, 1), inode };
        let look = |maps: &str| mapped(maps, &[file(7), file(9)]);
        assert_eq!(look(""), None);
        assert_eq!(look(&line("rw-s", "00:01", 8)), None, "another file");
        assert_eq!(look(&line("rw-s", "00:02", 7)), None, "another device");
        assert_eq!(look(&line("rw-s", "00:01", 7)), Some(Mapped::Shared));
        assert_eq!(look(&line("rw-p", "00:01", 9)), Some(Mapped::Private));
        assert_eq!(look(&(line("rw-p", "00:01", 9) + &line("rw-s", "00:01", 7))), Some(Mapped::Shared));
    }
}
