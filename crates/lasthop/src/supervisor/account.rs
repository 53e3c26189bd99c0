//! What the ports' counters were when a switch process died: the next one's go on from there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lasthop_engine::{BOOK_BYTES, counters_in};
use lasthop_fabric::{Drops, PortCounters};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::orders::Answer;
use crate::report::{self, PortReport};

use super::Supervisor;
use super::store::Key;

/// One port's counters: those of all switch processes that are dead, and memory in which the present one keeps its own.
#[derive(Debug)]
pub(super) struct Account {
    book: OwnedFd,
    past: PortCounters,
}

impl Account {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { book: blank()?, past: PortCounters::default() })
    }

    /// What another supervisor kept. Words of another version are none.
    pub(super) fn of_kept(book: OwnedFd, past: &[u64]) -> Self {
        let past = if past.len() == PortCounters::WORDS { past } else { &[] };
        let mut account = Self { book, past: PortCounters::of_words(past) };
        // Whoever counted there is dead.
        if let Ok(counters) = account.close_book() {
            account.past.merge(&counters);
        }
        account
    }

    /// The counters of all that are dead.
    pub(super) fn past_words(&self) -> Vec<u64> {
        self.past.words().to_vec()
    }

    /// A copy of the memory, for the switch.
    pub(super) fn book(&self) -> io::Result<OwnedFd> {
        self.book.try_clone()
    }

    /// The switch is dead: what it counted; the next one begins a new book.
    fn close_book(&mut self) -> io::Result<PortCounters> {
        let mut bytes = vec![0; BOOK_BYTES];
        let read = rustix::io::pread(&self.book, &mut bytes[..], 0)?;
        self.book = blank()?;
        Ok(counters_in(&bytes[..read]))
    }
}

impl AsFd for Account {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.book.as_fd()
    }
}

fn blank() -> io::Result<OwnedFd> {
    let book = memfd_create("lasthop-counters", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&book, BOOK_BYTES as u64)?;
    fcntl_add_seals(&book, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(book)
}

impl Supervisor {
    /// Memory for the counters of port `number`; none if the system has none: then they begin at 0 with each switch process.
    pub(super) fn book(&mut self, number: u32) -> Option<OwnedFd> {
        if let Some(account) = self.accounts.get(&number) {
            return account.book().ok();
        }
        let account = Account::open().ok()?;
        let book = account.book().ok();
        self.accounts.insert(number, account);
        self.store.is_late(Key::Port(number));
        book
    }

    /// The switch is dead: what it counted is added to what others did before it.
    ///
    /// Returns what it counted, of all ports together.
    pub(super) fn close_books(&mut self) -> PortCounters {
        let accounts = self.accounts.values_mut();
        let mut closed: Vec<(&mut Account, PortCounters)> = accounts
            .filter_map(|account| account.close_book().ok().map(|counters| (account, counters)))
            .collect();
        balance(closed.iter_mut().map(|(_, counters)| counters).collect());
        let mut sum = PortCounters::default();
        for (account, counters) in closed {
            account.past.merge(&counters);
            sum.merge(&counters);
        }
        self.accounts.keys().for_each(|number| self.store.is_late(Key::Port(*number)));
        sum
    }

    /// Adds what was counted before to the counters of the present switch process.
    pub(super) fn with_past(&self, mut answer: Answer) -> Answer {
        let ports = match &mut answer {
            Answer::Stats(stats) => &mut stats.ports,
            Answer::Inspection(inspection) => &mut inspection.ports,
            _ => return answer,
        };
        for port in ports {
            let number = self.ports.iter().find(|(_, known)| known.spec.name.as_str() == port.name);
            if let Some(account) = number.and_then(|(number, _)| self.accounts.get(number)) {
                add(port, &account.past);
            }
        }
        answer
    }
}

/// The copies of different ports' counters may be of different moments: what left one port has come to another.
fn balance(mut ports: Vec<&mut PortCounters>) {
    let forwarded: u64 = ports.iter().map(|port| port.forwarded).sum();
    let delivered: u64 = ports.iter().map(|port| port.tx_packets).sum();
    let Some(busiest) = ports.iter_mut().max_by_key(|port| port.forwarded + port.tx_packets) else { return };
    let missing = delivered.saturating_sub(forwarded);
    busiest.forwarded += missing;
    busiest.rx_packets += missing;
    busiest.tx_packets += forwarded.saturating_sub(delivered);
}

/// What a process that is dead did, in a line.
pub(super) fn obituary(counters: &PortCounters) -> String {
    let mut drops = counters.rx_drops;
    drops.merge(&counters.tx_drops);
    let mut reasons: Vec<_> = drops.nonzero().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let reasons: Vec<String> =
        reasons.iter().map(|(reason, count)| format!("{count} {}", reason.name())).collect();
    let reasons = if reasons.is_empty() { "nothing".to_owned() } else { reasons.join(", ") };
    let (taken, delivered) = (counters.rx_packets, counters.tx_packets);
    format!("it had taken {taken} packets, delivered {delivered}, and dropped {reasons}")
}

fn add(port: &mut PortReport, past: &PortCounters) {
    port.rx_packets += past.rx_packets;
    port.rx_bytes += past.rx_bytes;
    port.rx_gso_packets += past.rx_gso_packets;
    port.tx_packets += past.tx_packets;
    port.tx_bytes += past.tx_bytes;
    port.tx_gso_packets += past.tx_gso_packets;
    port.injected += past.injected;
    port.copies_added += past.copies_added;
    port.segments_added += past.segments_added;
    port.forwarded += past.forwarded;
    add_drops(&mut port.rx_drops, &past.rx_drops);
    add_drops(&mut port.tx_drops, &past.tx_drops);
    port.tx_csum_completed += past.tx_csum_completed;
    port.signals += past.signals;
}

fn add_drops(drops: &mut report::Drops, past: &Drops) {
    for (reason, count) in past.nonzero() {
        *drops.entry(reason.name().to_owned()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use lasthop_verdict::DropReason;

    use super::*;

    #[test]
    fn closed_books_balance() {
        let port = |rx_packets, forwarded, tx_packets| PortCounters {
            rx_packets,
            forwarded,
            tx_packets,
            ..PortCounters::default()
        };
        for (mut one, mut other) in [(port(9, 9, 3), port(3, 3, 7)), (port(5, 5, 3), port(3, 3, 9))] {
            balance(vec![&mut one, &mut other]);
            assert_eq!(one.forwarded + other.forwarded, one.tx_packets + other.tx_packets);
            assert!(one.is_conserved() && other.is_conserved());
        }
    }

    #[test]
    fn an_obituary_has_the_most_frequent_reason_first() {
        let mut counters = PortCounters { rx_packets: 9, tx_packets: 4, ..PortCounters::default() };
        assert_eq!(obituary(&counters), "it had taken 9 packets, delivered 4, and dropped nothing");
        counters.rx_drops.count_all(DropReason::BadCsum, 2);
        counters.tx_drops.count_all(DropReason::Restart, 3);
        let text = obituary(&counters);
        assert!(text.ends_with("dropped 3 restart, 2 bad_csum"), "{text}");
    }

    #[test]
    fn an_account_starts_blank_and_is_read_whole() {
        let mut account = Account::open().expect("an account");
        rustix::io::pwrite(&account.book, &7_u64.to_ne_bytes(), 0).expect("written");
        rustix::io::pwrite(&account.book, &7_u64.to_ne_bytes(), 6 * 8).expect("written");
        let counters = account.close_book().expect("read");
        assert_eq!((counters.rx_packets, counters.forwarded), (7, 7));
        assert_eq!(account.close_book().expect("read"), PortCounters::default());
    }
}
