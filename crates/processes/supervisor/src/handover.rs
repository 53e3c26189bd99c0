//! The last steps of an upgrade, which concern all parts: the new switch process takes over from the old one.

use std::collections::BTreeMap;

use log::{info, warn};

use lasthop_api::orders::Answer;
use lasthop_children::ChildProgram;
use lasthop_fd_store::SavedGuestSession;
use lasthop_listeners::Caller;
use lasthop_runtime::fault::Fault;

use super::ports::Ports;
use super::successor::{Successor, SuccessorSetup};
use super::upgrade::{RestOutcome, UpgradeParams};
use super::{Outputs, Supervisor};

impl Supervisor {
    /// Begins an upgrade. The reply comes when it is done or refused.
    pub(super) fn upgrade(&mut self, params: UpgradeParams, caller: &Caller) -> Result<(), Fault> {
        // The control group may configure networks, but not run programs as the switch's user.
        if !self.clients.is_owner(caller) {
            let why = "an upgrade is for root and the user who started the switch; ask one of them";
            return Err(Fault::refused(why));
        }
        self.standby.end(&mut self.ports);
        self.upgrades.begin(params, caller, &self.switches, self.settings.controller, &mut self.out)
    }

    /// Handles the old switch's reply to the order to rest.
    pub(super) fn rested(&mut self, result: Result<Answer, Fault>) {
        if self.stage.is_leaving() {
            return self.rested_to_leave(result.map(drop));
        }
        match self.upgrades.rested(result, &mut self.ports, &self.switches, &mut self.out) {
            RestOutcome::Refused(answer) => self.clients.answer_any(answer),
            RestOutcome::Ready(ready) => {
                let resting = *ready;
                self.succeed(resting.successor, resting.program.clone(), &resting.setup);
                self.upgrades.take_over(resting.waiting, resting.program, resting.setup.refused);
            }
        }
    }

    /// Has the new switch process continue; it knows the sessions in `setup`.
    fn succeed(&mut self, successor: Successor, program: ChildProgram, setup: &SuccessorSetup) {
        let predecessor = self.out.switch_process.process.replace(successor, program);
        self.ports.sessions.saved.values_mut().for_each(SavedGuestSession::begin_anew);
        self.ports.sessions.lacking = setup.program.lacking();
        self.fail_waiting();
        if !setup.program.keeps_flows {
            // It would not record changes of flows. Not earlier: a refused upgrade changes nothing.
            self.datapaths.forget_flows(&mut self.out.store);
        }
        self.deposit_head();
        // Guests wait for this, and for nothing after it: the old process is at rest.
        self.tell_of_guests(&setup.known);
        let Outputs { poller, store, .. } = &mut self.out;
        self.datapath_clients.end_all(poller);
        // It is killed, and reaped once it has ended; its last messages are ignored.
        predecessor.iter().for_each(|process| poller.remove(&process.channel));
        drop(predecessor);
        self.ports.counters.collect_counters(store);
        self.ports.table.down(&self.ports.sessions, poller);
        self.ports.note_introduced(&mut self.out);
    }

    /// Handles the end of the upgrade: the new process has all guests.
    pub(super) fn upgraded(&mut self) {
        self.out.switch_process.end_boost();
        let Some(finished) = self.upgrades.finish() else { return };
        let answer = finished.answer(self.out.switch_process.process.pid());
        let (program, pause_us) = (finished.program, finished.pause_us);
        info!("the switch process is that of {program} now; guests waited for {pause_us} us");
        self.ports.taken(finished.refused.into_iter().collect(), &mut self.out);
        self.controller.renew(program);
        self.clients.answer(finished.caller, Ok(answer));
    }
}

impl Ports {
    /// Handles the ports that the new switch process refused.
    pub(super) fn taken(&mut self, mut refused: BTreeMap<u32, Fault>, out: &mut Outputs) {
        let ports: Vec<u32> = self.table.all.keys().copied().collect();
        for port in ports {
            let result = refused.remove(&port).map_or(Ok(()), Err);
            if let Err(fault) = self.added(port, false, result, out) {
                warn!("{fault}");
            }
        }
    }
}
