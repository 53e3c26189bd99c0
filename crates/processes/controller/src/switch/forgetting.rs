//! Forgets learned Ethernet addresses, and has flows follow.

use lasthop_module_api::Vid;

use super::Switch;
use crate::addresses::FdbKey;
use crate::bounds::ABOUT_FEW;

impl Switch {
    /// Forgets addresses that have aged out.
    pub(crate) fn sweep(&mut self, now_ns: u64) {
        let fdb_keys = self.addresses.sweep(now_ns);
        self.forgotten(&fdb_keys, now_ns);
    }

    /// Forgets learned addresses, of one port or all, of one VLAN or all; returns their number.
    pub(crate) fn flush(&mut self, port: Option<&str>, vlan: Option<Vid>, now_ns: u64) -> usize {
        let number = port.map(|name| self.numbers.get(name).copied());
        let fdb_keys = match number {
            Some(None) => Vec::new(),
            Some(number) => self.addresses.flush(number, vlan),
            None => self.addresses.flush(None, vlan),
        };
        self.forgotten(&fdb_keys, now_ns);
        fdb_keys.len()
    }

    /// Revalidates flows from forgotten addresses: the next packet has to be seen to learn the address again.
    fn forgotten(&mut self, fdb_keys: &[FdbKey], now_ns: u64) {
        if fdb_keys.len() <= ABOUT_FEW {
            fdb_keys.iter().for_each(|fdb_key| self.revalidate_about(*fdb_key, now_ns));
        } else {
            let about = fdb_keys.iter().flat_map(|fdb_key| self.flows.about(*fdb_key));
            self.to_revalidate.extend(about);
        }
        self.revalidate_unlearned(now_ns);
    }
}
