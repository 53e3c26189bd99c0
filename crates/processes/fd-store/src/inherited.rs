//! The descriptors that the service manager kept for this process.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use lasthop_foreign::{ForeignFd, Origin};

use crate::identity::FdIdentity;
use crate::names::{HEAD_NAME, PORT_NAMES, is_ours};
use crate::record::Record;
use crate::sys;

/// The most descriptors from a manager: more than any sensible setting allows.
const COUNT_MAX: u16 = u16::MAX - 3;

/// The inherited descriptors with our names.
#[derive(Debug, Default)]
pub struct Inherited {
    pub(crate) head: Option<(Record, Vec<u8>)>,
    /// The records of ports, by port.
    pub(crate) ports: BTreeMap<u32, (Record, Vec<u8>)>,
    pub(crate) fds: BTreeMap<FdIdentity, (String, ForeignFd)>,
    /// Names of unused descriptors.
    pub(crate) useless: Vec<String>,
}

impl Inherited {
    /// Takes the descriptors that this process inherited. Must be called before anything is opened.
    pub fn take() -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let is_ours = variable("LISTEN_PID").parse() == Ok(std::process::id());
        let count = variable("LISTEN_FDS").parse().ok().filter(|count| is_ours && *count <= COUNT_MAX);
        let fds = sys::take(count.unwrap_or_default());
        let names = variable("LISTEN_FDNAMES");
        // Descriptors without a name, or with other names, belong to others: for example sockets of a .socket unit.
        Self::of_named(names.split(':').map(str::to_owned).zip(fds))
    }

    /// Takes the descriptors with our names.
    pub fn of_named(fds: impl Iterator<Item = (String, OwnedFd)>) -> Self {
        let mut this = Self::default();
        for (name, fd) in fds.filter(|(name, _)| is_ours(name)) {
            this.sort(name, fd);
        }
        this
    }

    fn sort(&mut self, name: String, fd: OwnedFd) {
        let port = name.strip_prefix(PORT_NAMES).map(str::parse);
        let is_known = match (name.as_str(), port) {
            (HEAD_NAME, _) => {
                self.head = Record::read(fd);
                self.head.is_some()
            }
            (_, Some(Ok(port))) => {
                let record = Record::read(fd);
                record.map(|record| self.ports.insert(port, record)).is_some()
            }
            _ => match FdIdentity::of(&fd) {
                Ok(identity) => {
                    let fd = ForeignFd::new(fd, &Origin::new("the service manager"));
                    // Of two equal descriptors the earlier one is dropped, under its own name.
                    let before = self.fds.insert(identity, (name.clone(), fd));
                    self.useless.extend(before.map(|(name, _)| name));
                    true
                }
                Err(_) => false,
            },
        };
        if !is_known {
            self.useless.push(name);
        }
    }

    /// Whether nothing was inherited.
    pub fn is_empty(&self) -> bool {
        self.head.is_none() && self.ports.is_empty() && self.fds.is_empty() && self.useless.is_empty()
    }

    /// The text of the head record, if it was inherited.
    pub fn head(&self) -> Option<&[u8]> {
        self.head.as_ref().map(|(_, text)| &text[..])
    }

    /// The texts of ports, by port.
    pub fn ports(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.ports.iter().map(|(number, (_, text))| (*number, &text[..]))
    }

    /// All descriptors except those of records.
    pub fn all(&self) -> impl Iterator<Item = &ForeignFd> {
        self.fds.values().map(|(_, fd)| fd)
    }

    /// A copy of a descriptor, if it was inherited.
    pub fn find(&self, identity: &FdIdentity) -> Option<ForeignFd> {
        self.fds.get(identity)?.1.try_clone().ok()
    }
}

#[cfg(test)]
mod tests {
    use crate::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_ours_is_sorted_and_the_rest_is_closed() {
        let record = |text: &[u8]| {
            let mut record = Record::create().expect("memory");
            record.write(text).expect("written");
            record.as_fd().try_clone_to_owned().expect("a copy")
        };
        let (one, other) = UnixStream::pair().expect("a pair");
        let identity = FdIdentity::of(&one).expect("open");
        let all = [
            ("lasthop-head", record(b"head")),
            ("lasthop-port-7", record(b"seven")),
            ("lasthop-1", one.try_clone().expect("a copy").into()),
            ("lasthop-2", one.into()),
            ("somebodys", other.into()),
            ("lasthop-port-8", tempfile::tempfile().expect("a file").into()),
        ];
        let inherited = Inherited::of_named(all.map(|(name, fd)| (name.to_owned(), fd)).into_iter());
        assert_eq!(inherited.head(), Some(&b"head"[..]));
        assert_eq!(inherited.ports().collect::<Vec<_>>(), [(7, &b"seven"[..])]);
        assert!(inherited.find(&identity).is_some() && inherited.all().count() == 1);
        assert_eq!(inherited.useless, ["lasthop-1", "lasthop-port-8"], "one too many, a file without a text");
        assert!(Inherited::of_named(std::iter::empty()).is_empty());
    }
}
