//! The switch process: the engine, and one vhost-user session for each guest.
//!
//! **Purpose.** [`run`] is the process's whole life. Its main thread serves the channel to the supervisor, the control
//! interface and upcalls. Each session has a thread of its own, so that no front end delays the main thread. The
//! engine's threads move packets.
//!
//! **Contract.** The process opens no path: connections, memory and rings of guests come over the channel or over those
//! connections. It enters its sandbox before it serves a guest. Without a supervisor it finishes its work and ends.
//!
//! **Not checked.** Orders of the supervisor, which is trusted.
//!
//! **Threading.** The main thread, one thread for each session, and the engine's workers.
//!
//! ```text
//!   supervisor ──orders, descriptors──> main thread ──> datapath: engine, workers
//!                                          │  └ interface: control clients, upcalls
//!   guest (VMM) ──vhost-user───────────> sessions ──> rings and memory for the engine
//! ```
#![deny(unsafe_code)] // files called sys.rs alone may have some

mod captures;
mod datapath;
mod explain;
mod flow_memory;
mod inspection;
mod interface;
mod keeper;
mod port_requests;
mod profiles;
mod queue_moves;
mod reports;
mod scheduler;
mod sessions;
mod succession;
mod switches;
mod sys;
mod traced_inputs;

use std::os::fd::{AsFd, IntoRawFd};
use std::sync::Arc;
use std::time::Duration;

use lasthop_engine::GUEST_FEATURES;
use lasthop_foreign::{ForeignFd, Origin};

use lasthop_api::capture::CaptureSpec;
use lasthop_api::explain::{Consultation, ExplainSpec, Explained};
use lasthop_api::modules::FLOW;
use lasthop_api::orders::{Answer, Order, Report, Request, STATE_VERSION, SwitchProgram};
use lasthop_api::port::PortSpec;
use lasthop_api::profile::ProfileSpec;
use lasthop_api::report::{FdbReport, SwitchInside};
use lasthop_api::settings::SwitchSettings;
use lasthop_api::switches::SwitchSpec;
use lasthop_runtime::clock::earlier;
use lasthop_runtime::descriptors;
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::hangs::{HangWatch, Turns};
use lasthop_runtime::ipc::{Channel, take_channel};
use lasthop_runtime::poller::{Interest, PollEvent, Poller};
use lasthop_runtime::sandbox::{self, KeptFds, ProcessRole, Spent};
use lasthop_runtime::signals;

use captures::{Captures, Terms};
use datapath::Datapath;
use interface::{Interface, Numbers};
use keeper::Keeper;
use profiles::{ProfileTerms, Profiles};
use queue_moves::WaitingMoves;
use reports::{Flushed, Reports};
use sessions::{Arrival, Sessions};
use succession::{PendingSuccessors, Quiescing, SessionFds};

/// The channel's number in the poller.
const CHANNEL: u64 = 0;
/// The main thread's work for the hang watch.
const CLIENTS: &str = "clients of the control interface";
/// The poller's numbers of the control interface.
const INTERFACE: Numbers = Numbers { clients: 1, packets: 2 };

/// Runs until the supervisor tells it to end or is gone.
pub fn run(settings: &SwitchSettings) -> Result<(), Fault> {
    // The supervisor handles signals to the process group.
    signals::ignore()?;
    descriptors::prepare_table();
    // Sets the name, since it was started as /proc/self/exe.
    let _ = rustix::thread::set_name(c"lasthop-switch");
    let mut channel = take_channel()?;
    let datapath = match begin(settings, &mut channel) {
        Ok(datapath) => datapath,
        Err(fault) => fail(&mut channel, fault),
    };
    let (poller, channel_poller) = (Poller::new()?, Poller::new()?);
    poller.add(&channel, CHANNEL, Interest::READ)?;
    channel_poller.add(&channel, CHANNEL, Interest::READ)?;
    let interface = Interface::new(&poller, INTERFACE, settings)?;
    let reports = Reports::new(channel.as_fd())
        .map_err(|error| Fault::internal("send on the channel to the supervisor", error))?;
    let (reports, watch) = (Arc::new(reports), HangWatch::start("the main thread of the switch process"));
    Switch {
        channel,
        reports: Arc::clone(&reports),
        turns: watch.watch(None),
        interface,
        is_channel_full: false,
        poller,
        channel_poller,
        datapath,
        sessions: Sessions::new(reports, watch),
        captures: Captures::default(),
        profiles: Profiles::default(),
        moves: WaitingMoves::default(),
        quiescing: None,
        brought: SessionFds::default(),
        pending_successors: PendingSuccessors::default(),
        stage: Stage::Serving,
    }
    .serve()
}

/// Ends a process that cannot start. The supervisor logs the reason.
fn fail(channel: &mut Channel<Report, Request>, fault: Fault) -> ! {
    let _ = channel.send(&Report::Failed { why: fault.message }, None);
    std::process::exit(1);
}

/// Enters the sandbox, then makes the workers, which inherit it.
fn begin(settings: &SwitchSettings, channel: &mut Channel<Report, Request>) -> Result<Datapath, Fault> {
    let kept = KeptFds { channel: channel.as_fd() };
    let keeper = Keeper::prepare();
    let layers = sandbox::enter(ProcessRole::Switch, settings.sandbox, &kept, Report::Forbidden)?;
    // Never freed, since the keeper, which uses it, may outlive everything here.
    let spent = Spent::of(ProcessRole::Switch, settings.sandbox, &layers)?;
    let spent = spent.map(|spent| &*Box::leak(Box::new(spent)));
    // Without a keeper only guests' wait after a death of this process is longer.
    if let Ok(held) = keeper.and_then(|keeper| keeper.start(spent)) {
        let _ = held.into_raw_fd();
    }
    spent.map_or(Ok(()), Spent::take_away)?;
    descriptors::start_closing();
    let _ = channel.send(&Report::Sandbox(layers), None);
    Datapath::prepare(settings)
}

/// The reason why a connection did not arrive.
fn no_descriptor() -> Fault {
    let why = "the switch process has no file descriptor left for its connection; raise the limit (ulimit -n, LimitNOFILE=)";
    Fault::new(Kind::Limit, why)
}

/// The stage of the switch process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    /// Another process is about to continue: nothing is fetched from guests.
    Resting,
    /// The last reply is being sent.
    Ending,
    Over,
}

struct Switch {
    /// Only receives; `reports` sends.
    channel: Channel<Report, Request>,
    reports: Arc<Reports>,
    turns: Arc<Turns>,
    is_channel_full: bool,
    poller: Poller,
    /// The channel alone: the only thing that a resting switch listens to.
    channel_poller: Poller,
    interface: Interface,
    /// Dropped before the engine: sessions have devices of it.
    sessions: Sessions,
    /// Dropped before the engine, too.
    pending_successors: PendingSuccessors,
    /// Dropped before the engine: captures end with a task of its workers.
    captures: Captures,
    /// Dropped before the engine, too.
    profiles: Profiles,
    datapath: Datapath,
    moves: WaitingMoves,
    quiescing: Option<Quiescing>,
    brought: SessionFds,
    stage: Stage,
}

impl Switch {
    fn serve(&mut self) -> Result<(), Fault> {
        let turns = Arc::clone(&self.turns);
        while self.stage != Stage::Over {
            for PollEvent { source, .. } in self.wait()? {
                match source {
                    CHANNEL => {
                        let _turn = turns.begin("an order of the supervisor");
                        self.hear();
                    }
                    // It came to rest in between.
                    _ if self.stage == Stage::Resting => {}
                    _ if source == INTERFACE.clients => {
                        let _turn = turns.begin(CLIENTS);
                        self.interface.serve(&mut self.datapath);
                    }
                    _ => {
                        let _turn = turns.begin("packets for the control plane");
                        self.interface.ask(&mut self.datapath);
                    }
                }
            }
            self.finish_turn(&turns);
            self.watch_channel()?;
        }
        Ok(())
    }

    /// Ends a turn, after all its events were handled.
    fn finish_turn(&mut self, turns: &Turns) {
        if self.stage == Stage::Serving {
            let _turn = turns.begin(CLIENTS);
            self.interface.finish(&mut self.datapath);
            self.try_moves();
        }
        for report in self.interface.take_reports() {
            self.reports.report(&report);
        }
        self.rest_if_quiet();
        if self.datapath.is_begun() {
            self.sessions.start_threads();
        }
    }

    /// Waits for events. A resting process serves no client, and clients do not wake it: their messages stay in the
    /// sockets.
    fn wait(&mut self) -> Result<Vec<PollEvent>, Fault> {
        let due = earlier(self.reports.due(), self.quiescing.map(|_| Quiescing::due()));
        match self.stage {
            Stage::Resting => self.channel_poller.wait(due),
            _ => self.poller.wait(earlier(due, earlier(self.moves.due(), self.interface.due()))),
        }
    }

    fn hear(&mut self) {
        let is_open = self.reports.flush() != Flushed::Gone && self.channel.receive().unwrap_or(false);
        while let Some((request, fds)) = self.channel.take() {
            self.execute(request, fds);
        }
        match self.stage {
            Stage::Ending if !is_open || !self.reports.wants_write() => self.stage = Stage::Over,
            Stage::Serving | Stage::Resting if !is_open => self.leave(),
            _ => {}
        }
    }

    /// Waits for room in the channel while this thread has waiting reports; sessions wait for theirs themselves.
    fn watch_channel(&mut self) -> Result<(), Fault> {
        let _ = self.reports.flush(); // if the other side is gone, reading says so
        if self.reports.is_overrun() && matches!(self.stage, Stage::Serving | Stage::Resting) {
            self.leave();
        }
        let interest = self.reports.interest();
        if interest.write != self.is_channel_full {
            for poller in [&self.poller, &self.channel_poller] {
                poller.modify(&self.channel, CHANNEL, interest)?;
            }
            self.is_channel_full = interest.write;
        }
        Ok(())
    }

    fn execute(&mut self, Request { id, order }: Request, fds: Option<Vec<ForeignFd>>) {
        if !order.is_preparation() {
            self.begin_work();
        }
        let result = match order {
            Order::Attach { name, attachment } => return self.attach(name, attachment, fds),
            Order::Bring { attachment, numbers } => return self.bring(attachment, numbers, fds),
            Order::TakeOver { name, attachment, session } => {
                self.take_over(name, attachment, session, fds).map(|()| Answer::Done)
            }
            Order::Prepare { name, attachment, session } => {
                let prepared = self.prepare(name.clone(), attachment, session, fds);
                let of_vnic = |fault: Fault| Fault::new(fault.kind, format!("port {name}: {fault}"));
                prepared.map(|()| Answer::Done).map_err(of_vnic)
            }
            Order::Touch { for_us } => return self.touch(Duration::from_micros(for_us)),
            Order::GoOn { attachments } => Ok(Answer::WentOn { refused: self.go_on_with(&attachments) }),
            Order::AddPort(port) => {
                let memory = fds.and_then(|mut fds| fds.pop()).map(ForeignFd::into_trusted);
                self.datapath.add(&port, memory).map(|()| {
                    self.interface.port_arrived(port.common.name.as_str(), &mut self.datapath);
                    Answer::Done
                })
            }
            Order::ChangePort(port) => self.datapath.change(&port).map(|()| {
                let guest_told = self.sessions.set_link(port.common.name.as_str(), port.common.link.is_up());
                Answer::Changed { guest_told }
            }),
            Order::RemovePort { name } => {
                self.sessions.end_of_port(&name);
                self.interface.port_lost(&name, &mut self.datapath);
                self.datapath.remove(&name).map(|()| Answer::Done)
            }
            Order::Capture { spec, greeting } => self.capture(&spec, greeting, fds).map(|()| Answer::Done),
            Order::Profile { spec, greeting } => self.profile(&spec, greeting, fds).map(|()| Answer::Done),
            Order::Restore(told) => {
                let flows = fds.and_then(|mut fds| fds.pop());
                self.interface.restore(told, flows, &mut self.datapath).map(|()| Answer::Done)
            }
            Order::Connect => self.connect((fds, id), false).map(|()| Answer::Done),
            Order::ConnectController => self.connect((fds, id), true).map(|()| Answer::Done),
            Order::AddSwitch(spec) => self.datapath.add_switch(&spec).map(|()| Answer::Done),
            Order::SetSwitch(spec) => self.set_switch(&spec).map(|()| Answer::Done),
            Order::RemoveSwitch { name } => self.remove_switch(&name).map(|()| Answer::Done),
            Order::HostDevice { name, device } => return self.datapath.set_host_device(&name, device),
            Order::Denied { name, errno } => return self.interface.port_denied(&name, errno),
            Order::Switches => Ok(Answer::Switches(self.switches())),
            Order::Scheduler { policies, guests, places } => {
                let fds = fds.unwrap_or_default();
                self.datapath.see_scheduler(fds, &policies, &guests, &places).map(|()| Answer::Done)
            }
            Order::MoveQueue(wanted) => return self.move_queue(id, wanted),
            Order::SchedTable => self.datapath.movement_table().map(Answer::SchedTable),
            Order::SchedTrace => self.datapath.trace_scheduling().map(Answer::SchedTrace),
            Order::Explain { spec, consultations } => {
                self.explain(&spec, &consultations).map(|explained| Answer::Explained(Box::new(explained)))
            }
            Order::Stats => self.datapath.stats().map(Answer::Stats),
            Order::Inspect { name } => {
                let callers = self.interface.callers(&self.datapath);
                inspection::inspect(&self.datapath, &self.sessions, name.as_deref(), callers)
                    .map(Answer::Inspection)
            }
            Order::Fdb { switch, in_parts } => Ok(Answer::Fdb(self.fdb(id, switch.as_deref(), in_parts))),
            Order::FdbAdd(entry) => self.datapath.fdb_add(&entry).map(|()| Answer::Done),
            Order::FdbDel(entry) => self.datapath.fdb_del(&entry).map(|()| Answer::Done),
            Order::FdbFlush(flush) => self.datapath.fdb_flush(&flush).map(Answer::Flushed),
            Order::Know => Ok(Answer::Knows(SwitchProgram {
                version: STATE_VERSION,
                prepares: true,
                keeps_flows: true,
                sees_scheduler: true,
                hears_sleepers: true,
                traces_decisions: true,
                has_table: true,
                moves_queues: true,
                program: env!("CARGO_PKG_VERSION").to_owned(),
                vnic_keys: PortSpec::KEYS.iter().map(|key| (*key).to_owned()).collect(),
                guest_features: GUEST_FEATURES,
            })),
            Order::Rest => return self.begin_to_rest(id),
            Order::Hold => self.datapath.rest(Duration::ZERO).map(|()| Answer::Done),
            Order::Wake => self.wake().map(|()| Answer::Done),
            Order::End => {
                self.captures = Captures::default();
                self.profiles = Profiles::default();
                self.sessions.end_all();
                self.stage = Stage::Ending;
                return self.reports.reply_last(id, Ok(Answer::Done));
            }
        };
        self.reports.reply(id, result);
    }

    /// Shows the way of a packet without sending it.
    fn explain(&self, spec: &ExplainSpec, consultations: &[Consultation]) -> Result<Explained, Fault> {
        let names = self.interface.names_at(self.datapath.named(&spec.from)?.at);
        explain::explain((spec, consultations), &self.datapath, &names)
    }

    /// The facts that each switch knows, and the controller of its packets.
    fn switches(&self) -> Vec<SwitchInside> {
        let (mut all, callers) = (self.datapath.switches(), self.interface.callers(&self.datapath));
        for switch in all.iter_mut().filter(|switch| self.datapath.is_for_outside(switch.name.as_str())) {
            switch.callers.clone_from(&callers);
            switch.counters.extend(self.interface.counters(switch.name.as_str()));
        }
        all
    }

    /// All addresses; if they are sent in parts, the last part.
    fn fdb(&mut self, id: u64, switch: Option<&str>, in_parts: bool) -> FdbReport {
        let whole = self.datapath.fdb(switch);
        if !in_parts {
            return whole;
        }
        let (parts, last) = whole.in_parts();
        parts.into_iter().for_each(|fdb| self.reports.report(&Report::Addresses { id, fdb }));
        last
    }

    /// Starts the workers: packets pass from here on.
    fn begin_work(&mut self) {
        if let Err(fault) = self.datapath.begin() {
            self.reports.report(&Report::Failed { why: fault.message });
            std::process::exit(1);
        }
    }

    fn attach(&mut self, name: String, attachment: u64, fds: Option<Vec<ForeignFd>>) {
        let made = self.datapath.device(&name).and_then(|device| {
            let mut fds = fds.unwrap_or_default().into_iter();
            let (socket, memory) = (fds.next().ok_or_else(no_descriptor)?, fds.next());
            let origin = self.sessions.admit(&name)?;
            let arrival = Arrival { name: name.clone(), attachment, socket: socket.of(&origin), memory };
            self.sessions.begin(arrival, device)
        });
        if let Err(fault) = made {
            self.reports.report_of_session(&Report::Detached { name, attachment, why: fault.message });
        }
    }

    /// Changes a switch. Without a flow table it is no datapath any more. Another controller starts with an empty
    /// datapath: the former one's flows would stay for ever.
    fn set_switch(&mut self, spec: &SwitchSpec) -> Result<(), Fault> {
        if spec.module.as_str() != FLOW || self.datapath.has_other_controller(spec) {
            self.interface.datapath_lost(spec.name.as_str(), &mut self.datapath);
        }
        self.datapath.set_switch(spec)
    }

    /// Removes a switch and its datapath: otherwise the next switch of this name would find a datapath with another
    /// switch's number.
    fn remove_switch(&mut self, name: &str) -> Result<(), Fault> {
        self.datapath.remove_switch(name)?;
        self.interface.datapath_lost(name, &mut self.datapath);
        Ok(())
    }

    /// Adds a client of the control interface, or the embedded controller.
    fn connect(&mut self, (fds, number): (Option<Vec<ForeignFd>>, u64), is_own: bool) -> Result<(), Fault> {
        let client = fds.and_then(|mut fds| fds.pop()).ok_or_else(no_descriptor)?;
        let client = client.of(&Origin::new("a control client"));
        self.interface.add(&self.poller, (client, number), is_own, &self.datapath);
        Ok(())
    }

    fn capture(
        &mut self,
        spec: &CaptureSpec,
        greeting: String,
        fds: Option<Vec<ForeignFd>>,
    ) -> Result<(), Fault> {
        let client = fds.and_then(|mut fds| fds.pop()).ok_or_else(no_descriptor)?;
        let (capture, names) = self.datapath.capture(spec)?;
        let terms = Terms {
            names,
            snap_len_bytes: spec.snap_len_bytes(),
            count: spec.count,
            duration: spec.duration_s.map(Duration::from_secs),
            greeting: greeting.into_bytes(),
        };
        self.captures.begin(capture, client.of(&Origin::new("a capture client")), terms)
    }

    fn profile(
        &mut self,
        spec: &ProfileSpec,
        greeting: String,
        fds: Option<Vec<ForeignFd>>,
    ) -> Result<(), Fault> {
        spec.check()?;
        let client = fds.and_then(|mut fds| fds.pop()).ok_or_else(no_descriptor)?;
        let (profile, names) = self.datapath.profile(spec.every())?;
        let (every, duration) = (spec.every(), Duration::from_secs(spec.duration_s));
        let terms = ProfileTerms { names, every, duration, greeting: greeting.into_bytes() };
        self.profiles.begin(profile, client.of(&Origin::new("a profile's client")), terms)
    }
}
