//! Traffic in which a lost, duplicated, changed or late frame is noticed.
//!
//! ```text
//! usage: numbered FLOW...
//!   talk:NAME:SOCKET:SOCKET:RATE           two guests send each other numbered frames: the flows NAME-there and NAME-back
//!   echo:SOCKET:IP:RATE:NAME=IP[,NAME=IP]  a guest with this address pings others, whose kernels answer
//!   sink:NAME:PORT:FILE                    receives the file over TCP, repeatedly
//! ```
//!
//! A SOCKET is the switch's; with @ before it the guest listens there, again after the switch hung up. RATE is frames a
//! second, 0 for as many as there is room for. Lines on standard input: `go` and `quiet` start and stop sending; `look`
//! prints a line for each flow; `mark` resets gaps. Each is answered by a line with a dot. The program ends with its
//! input.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that is talked to")]

mod echo;
mod line;
mod sink;
mod talk;
mod tally;

use std::error::Error;
use std::fmt::Display;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use echo::{Pinger, Target};
use line::Place;
use sink::Sink;
use talk::Talker;
use tally::Tally;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Orders to all threads.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    is_on: AtomicBool,
}

impl Orders {
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_on.load(Ordering::Relaxed)
    }
}

pub(crate) fn complain(what: &str) {
    eprintln!("numbered: {what}");
}

#[derive(Default)]
struct Flows {
    orders: Arc<Orders>,
    tallies: Vec<(String, Arc<Tally>)>,
    guests: u8,
}

impl Flows {
    fn tally(&mut self, name: &str) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        self.tallies.push((name.to_owned(), Arc::clone(&tally)));
        tally
    }

    fn mac(&mut self) -> [u8; 6] {
        self.guests += 1;
        [2, 0, 0, 0, 0x30, self.guests]
    }

    fn start(&mut self, flow: &str) -> Result<()> {
        match flow.split(':').collect::<Vec<_>>()[..] {
            ["talk", name, one, other, rate] => self.start_talk(name, [one, other], rate.parse()?),
            ["echo", socket, ip, rate, targets] => self.start_echo(socket, ip, rate.parse()?, targets)?,
            ["sink", name, port, file] => {
                let sink = Sink { port: port.parse()?, file: std::fs::read(file)?, tally: self.tally(name) };
                if sink.file.is_empty() {
                    return Err(format!("{file} is empty").into());
                }
                run(name, move || sink.run());
            }
            _ => return Err(format!("'{flow}' is no flow: talk:..., echo:... or sink:...").into()),
        }
        Ok(())
    }

    fn start_talk(&mut self, name: &str, sockets: [&str; 2], per_s: u64) {
        let macs = [self.mac(), self.mac()];
        let tallies = ["there", "back"].map(|way| self.tally(&format!("{name}-{way}")));
        for me in [0, 1] {
            let talker = Talker {
                place: Place(sockets[me].to_owned()),
                mac: macs[me],
                other: macs[1 - me],
                per_s,
                says: Arc::clone(&tallies[me]),
                hears: Arc::clone(&tallies[1 - me]),
            };
            let orders = Arc::clone(&self.orders);
            run(name, move || talker.run(&orders));
        }
    }

    fn start_echo(&mut self, socket: &str, ip: &str, per_s: u64, targets: &str) -> Result<()> {
        let mut pinger =
            Pinger { place: Place(socket.to_owned()), mac: self.mac(), ip: ip.parse()?, targets: Vec::new() };
        for target in targets.split(',') {
            let (name, ip) = target.split_once('=').ok_or(format!("'{target}' is not NAME=IP"))?;
            pinger.targets.push(Target::new(ip.parse()?, per_s, &self.tally(name)));
        }
        let orders = Arc::clone(&self.orders);
        run(socket, move || pinger.run(&orders));
        Ok(())
    }

    fn carry_out(&self, line: &str) -> Result<()> {
        match line {
            "go" => self.orders.is_on.store(true, Ordering::Relaxed),
            "quiet" => self.orders.is_on.store(false, Ordering::Relaxed),
            "mark" => self.tallies.iter().for_each(|(_, tally)| tally.gap_ns.set(0)),
            "look" => self.tallies.iter().for_each(|(name, tally)| println!("{name} {}", tally.words())),
            _ => return Err(format!("'{line}' is no order: go, quiet, mark or look").into()),
        }
        println!(".");
        Ok(std::io::stdout().flush()?)
    }
}

/// Starts a thread for `what`, which ends only on an error, and then ends the program.
fn run<E: Display>(name: &str, mut what: impl FnMut() -> std::result::Result<(), E> + Send + 'static) {
    let name = name.to_owned();
    std::thread::spawn(move || {
        if let Err(why) = what() {
            complain(&format!("{name}: {why}"));
        }
        std::process::exit(1);
    });
}

fn main() -> Result<()> {
    let mut flows = Flows::default();
    for flow in std::env::args().skip(1) {
        flows.start(&flow)?;
    }
    for line in std::io::stdin().lock().lines() {
        flows.carry_out(&line?)?;
    }
    Ok(())
}
