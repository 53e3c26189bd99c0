//! The last steps of an upgrade, which concern all parts: the new switch process takes over from the old one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use log::{info, warn};

use lasthop_api::orders::Answer;
use lasthop_listeners::Asker;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::poller::Interest;

use super::Supervisor;
use super::outputs::Outputs;
use super::ports::Ports;
use super::saved_session::SavedSession;
use super::source::Source;
use super::successor::{Introduction, Successor};
use super::upgrade::{RestOutcome, UpgradeParams};

impl Supervisor {
    /// Begins an upgrade. The answer comes when it is done, or refused.
    pub(super) fn upgrade(&mut self, params: UpgradeParams, asker: &Asker) -> Result<(), Fault> {
        // A control group is trusted with networks, and not to run programs as the switch's user.
        if !self.clients.is_owner(asker) {
            let why = "an upgrade is for root and the user who started the switch; ask one of them";
            return Err(Fault::refused(why));
        }
        self.upgrades.begin(params, asker, &self.switches, self.settings.controller, &mut self.out)
    }

    /// The old switch has come to rest, or will not.
    pub(super) fn rested(&mut self, result: Result<Answer, Fault>) {
        if self.stage.is_leaving() {
            return self.rested_to_leave(result.map(drop));
        }
        match self.upgrades.rested(result, &mut self.ports, &self.switches, &mut self.out) {
            RestOutcome::Refused(answer) => self.clients.answer_any(answer),
            RestOutcome::Ready(ready) => {
                let resting = *ready;
                self.succeed(resting.successor, resting.program.clone(), &resting.introduction);
                self.upgrades.take_over(resting.waiting, resting.program, resting.introduction.refused);
            }
        }
    }

    /// Has the new switch go on, which knows sessions as they were.
    fn succeed(&mut self, successor: Successor, program: PathBuf, introduction: &Introduction) {
        let predecessor = self.out.switch.process.replace(successor, program);
        self.ports.sessions.saved.values_mut().for_each(SavedSession::begin_anew);
        self.fail_waiting();
        if !introduction.keeps_flows {
            // It would not record its changes to them. Not before: an upgrade that is refused leaves all as it was.
            self.datapaths.forget_flows(&mut self.out.store);
        }
        self.deposit_head();
        // Guests wait for this, and for nothing that comes after it: the old one stands still.
        self.tell_of_guests(&introduction.known);
        let Outputs { poller, switch, store } = &mut self.out;
        self.datapath_clients.end_all(poller);
        // It is killed, and reaped when it has ended; its last messages do not count.
        predecessor.iter().for_each(|process| poller.remove(&process.channel));
        drop(predecessor);
        if let Some(process) = switch.process.current() {
            // Fails only without memory; then the new one is not heard, and is replaced when its time is over.
            let _ = poller.modify(&process.channel, Source::Switch.into(), Interest::READ);
        }
        self.ports.counters.close_books(store);
        self.ports.table.down(&self.ports.sessions, poller);
        let ports: Vec<u32> = self.ports.table.all.keys().copied().collect();
        ports.into_iter().for_each(|port| drop(self.ports.table.note_told(port)));
    }

    /// The new switch continues everything.
    pub(super) fn upgraded(&mut self) {
        self.out.switch.end_boost();
        let Some(finished) = self.upgrades.finish() else { return };
        let answer = finished.answer(self.out.switch.process.pid());
        let (program, pause_us) = (finished.program, finished.pause_us);
        info!("the switch process is that of {} now; guests waited for {pause_us} us", program.display());
        self.ports.taken(finished.refused.into_iter().collect(), &mut self.out);
        self.controller.renew(program);
        self.clients.answer(finished.asker, Ok(answer));
    }
}

impl Ports {
    /// The new switch has all ports but those that it refused.
    fn taken(&mut self, mut refused: BTreeMap<u32, Fault>, out: &mut Outputs) {
        let ports: Vec<u32> = self.table.all.keys().copied().collect();
        for port in ports {
            let result = refused.remove(&port).map_or(Ok(()), Err);
            if let Err(fault) = self.added(port, false, result, out) {
                warn!("{fault}");
            }
        }
    }
}
