//! Two guests that send each other numbered frames.

use std::sync::Arc;
use std::time::Duration;

use lasthop_frontend::GuestError;
use lasthop_wire::Offload;

use crate::Orders;
use crate::line::{BURST, Line, Pace, Place, fill};
use crate::tally::{Ear, Tally};

/// EtherType for experiments (IEEE 802).
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
const NUMBER_AT: usize = 14;
const PATIENCE: Duration = Duration::from_micros(100);

/// One of the two.
#[derive(Debug)]
pub(crate) struct Talker {
    pub(crate) place: Place,
    pub(crate) mac: [u8; 6],
    pub(crate) other: [u8; 6],
    pub(crate) per_s: u64,
    pub(crate) says: Arc<Tally>,
    pub(crate) hears: Arc<Tally>,
}

impl Talker {
    pub(crate) fn run(&self, orders: &Orders) -> Result<(), GuestError> {
        let mut line = Line::open(&self.place, self.mac, &self.hears)?;
        let (mut pace, mut ear, mut number) = (Pace::new(self.per_s), Ear::new(), 0);
        loop {
            line.guest.reclaim(0)?;
            self.say(&mut line, &mut pace, &mut number, orders)?;
            self.listen(&mut line, &mut ear)?;
            line.wait(PATIENCE)?;
        }
    }

    fn say(
        &self,
        line: &mut Line,
        pace: &mut Pace,
        number: &mut u32,
        orders: &Orders,
    ) -> Result<(), GuestError> {
        let mut count = 0;
        while count < BURST && pace.is_due(orders) {
            if !line.guest.send(0, &frame(self.other, self.mac, *number + 1), Offload::default())? {
                break;
            }
            *number += 1;
            count += 1;
            pace.count();
        }
        self.says.sent.add(count as u64);
        self.says.held.set(u64::from(line.guest.in_flight(0)?));
        line.guest.flush(0)?;
        Ok(())
    }

    fn listen(&self, line: &mut Line, ear: &mut Ear) -> Result<(), GuestError> {
        let mut bytes = Vec::new();
        while line.guest.recv(0, &mut bytes)?.is_some() {
            // It also gets flooded frames of others.
            if bytes.get(6..NUMBER_AT) != Some(&[&self.other[..], &ETHER_TYPE].concat()[..]) {
                continue;
            }
            match number_of(&bytes) {
                Some(number) if bytes == frame(self.mac, self.other, number) => ear.hear(number, &self.hears),
                _ => self.hears.damaged.add(1),
            }
        }
        Ok(())
    }
}

fn number_of(frame: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(frame.get(NUMBER_AT..NUMBER_AT + 4)?.try_into().ok()?))
}

fn frame(to: [u8; 6], from: [u8; 6], number: u32) -> Vec<u8> {
    let mut frame = [&to[..], &from, &ETHER_TYPE, &number.to_be_bytes()].concat();
    let head = frame.len();
    frame.resize(60 + (number as usize * 37) % 1400, 0);
    fill(&mut frame[head..], number);
    frame
}
