//! A guest that pings others, whose kernels answer: numbered ICMP echoes, and ARP.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lasthop_frontend::GuestError;
use lasthop_wire::{Offload, Sum};

use crate::Orders;
use crate::line::{Line, Pace, Place, fill};
use crate::tally::{Ear, Tally};

const IP: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const BROADCAST: [u8; 6] = [0xff; 6];
const IP_AT: usize = 14;
const ICMP_AT: usize = IP_AT + 20;
const NUMBER_AT: usize = ICMP_AT + 8;
/// Time between two questions for an address.
const ASK_EVERY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_micros(200);

#[derive(Debug)]
pub(crate) struct Target {
    ip: Ipv4Addr,
    tally: Arc<Tally>,
    mac: Option<[u8; 6]>,
    number: u32,
    pace: Pace,
    ear: Ear,
}

impl Target {
    pub(crate) fn new(ip: Ipv4Addr, per_s: u64, tally: &Arc<Tally>) -> Self {
        let (pace, ear) = (Pace::new(per_s), Ear::new());
        Self { ip, tally: Arc::clone(tally), mac: None, number: 0, pace, ear }
    }
}

#[derive(Debug)]
pub(crate) struct Pinger {
    pub(crate) place: Place,
    pub(crate) mac: [u8; 6],
    pub(crate) ip: Ipv4Addr,
    pub(crate) targets: Vec<Target>,
}

impl Pinger {
    pub(crate) fn run(&mut self, orders: &Orders) -> Result<(), GuestError> {
        let mut line = Line::open(&self.place, self.mac, &self.targets[0].tally)?;
        let mut asked = None;
        loop {
            line.guest.reclaim(0)?;
            if asked.is_none_or(|asked: Instant| asked.elapsed() > ASK_EVERY) {
                self.ask(&mut line)?;
                asked = Some(Instant::now());
            }
            for at in 0..self.targets.len() {
                self.ping(at, &mut line, orders)?;
            }
            line.guest.flush(0)?;
            self.listen(&mut line)?;
            line.wait(PATIENCE)?;
        }
    }

    /// Asks targets for unknown addresses.
    fn ask(&self, line: &mut Line) -> Result<(), GuestError> {
        for target in self.targets.iter().filter(|target| target.mac.is_none()) {
            line.guest.send(0, &self.arp(1, BROADCAST, target.ip), Offload::default())?;
        }
        Ok(())
    }

    fn ping(&mut self, at: usize, line: &mut Line, orders: &Orders) -> Result<(), GuestError> {
        let (mac, ip) = (self.mac, self.ip);
        let target = &mut self.targets[at];
        let Some(to) = target.mac else { return Ok(()) };
        while target.pace.is_due(orders) {
            let icmp = icmp(8, at as u16, target.number + 1);
            let frame = [&to[..], &mac, &IP, &ip_header(ip, target.ip, icmp.len()), &icmp].concat();
            if !line.guest.send(0, &frame, Offload::default())? {
                break;
            }
            target.number += 1;
            target.tally.sent.add(1);
            target.pace.count();
        }
        target.tally.held.set(u64::from(line.guest.in_flight(0)?));
        Ok(())
    }

    fn listen(&mut self, line: &mut Line) -> Result<(), GuestError> {
        let mut frame = Vec::new();
        while line.guest.recv(0, &mut frame)?.is_some() {
            match frame.get(12..14) {
                Some(kind) if kind == IP => self.hear_echo(&frame),
                Some(kind) if kind == ARP && frame.len() >= 42 => self.hear_arp(&frame, line)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn hear_arp(&mut self, frame: &[u8], line: &mut Line) -> Result<(), GuestError> {
        let (mut mac, mut ip) = ([0; 6], [0; 4]);
        mac.copy_from_slice(&frame[22..28]);
        ip.copy_from_slice(&frame[28..32]);
        let from = Ipv4Addr::from(ip);
        if let Some(target) = self.targets.iter_mut().find(|target| target.ip == from) {
            target.mac = Some(mac);
        }
        if frame[20..22] == [0, 1] && frame[38..42] == self.ip.octets() {
            line.guest.send(0, &self.arp(2, mac, from), Offload::default())?;
            line.guest.flush(0)?;
        }
        Ok(())
    }

    /// A question (1) or an answer (2).
    fn arp(&self, what: u8, to: [u8; 6], ip: Ipv4Addr) -> Vec<u8> {
        let kind = [0, 1, 8, 0, 6, 4, 0, what];
        let parts: [&[u8]; 9] =
            [&to, &self.mac, &ARP, &kind, &self.mac, &self.ip.octets(), &to, &ip.octets(), &[0; 18]];
        parts.concat()
    }

    fn hear_echo(&mut self, frame: &[u8]) {
        let Some(about) = frame.get(ICMP_AT..NUMBER_AT + 4) else { return };
        let source = Ipv4Addr::new(frame[26], frame[27], frame[28], frame[29]);
        let at = usize::from(u16::from_be_bytes([about[4], about[5]]));
        let is_answer = frame[23] == 1 && about[0] == 0 && frame[30..34] == self.ip.octets();
        let Some(target) = self.targets.get_mut(at).filter(|target| is_answer && target.ip == source) else {
            return;
        };
        let number = u32::from_be_bytes([about[8], about[9], about[10], about[11]]);
        if frame[ICMP_AT..] == icmp(0, at as u16, number) {
            target.ear.hear(number, &target.tally);
        } else {
            target.tally.damaged.add(1);
        }
    }
}

fn ip_header(from: Ipv4Addr, to: Ipv4Addr, payload_bytes: usize) -> Vec<u8> {
    let len = (20 + payload_bytes) as u16;
    let start = [&[0x45, 0][..], &len.to_be_bytes(), &[0, 0, 0x40, 0, 64, 1]].concat();
    let addresses = [from.octets(), to.octets()].concat();
    let checksum = sum(&[&start, &addresses]);
    [&start[..], &checksum.to_be_bytes(), &addresses].concat()
}

/// An echo (8) or its answer (0).
fn icmp(kind: u8, identifier: u16, number: u32) -> Vec<u8> {
    let identity = [identifier.to_be_bytes(), (number as u16).to_be_bytes()].concat();
    let mut payload = vec![0; 32 + (number as usize * 37) % 1000];
    fill(&mut payload[4..], number);
    payload[..4].copy_from_slice(&number.to_be_bytes());
    let checksum = sum(&[&[kind, 0], &identity, &payload]);
    [&[kind, 0][..], &checksum.to_be_bytes(), &identity, &payload].concat()
}

fn sum(pieces: &[&[u8]]) -> u16 {
    let mut sum = Sum::default();
    pieces.iter().for_each(|piece| sum.add(piece));
    sum.finish()
}
