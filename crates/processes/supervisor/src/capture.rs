//! The methods `capture` and `profile`: the client's connection goes to the switch process, which writes the results to it.

use serde_json::{Value, json};

use lasthop_api::capture::CaptureSpec;
use lasthop_api::orders::Order;
use lasthop_api::profile::ProfileSpec;
use lasthop_api::rpc;
use lasthop_runtime::fault::{Fault, Kind};

use super::Supervisor;
use super::question::{Asker, OrderPurpose, switch_down};

impl Supervisor {
    /// Has the switch answer this client. Everything after the answer is the capture.
    pub(super) fn capture(&mut self, spec: &CaptureSpec, asker: &Asker) -> Result<(), Fault> {
        spec.check()?;
        for name in &spec.names {
            self.ports.find(name)?;
        }
        if self.ports.all.is_empty() {
            return Err(Fault::new(
                Kind::NoSuchVnic,
                "there is no vnic; make one first: lasthop vnic add NAME",
            ));
        }
        if !self.switch.process.is_up() {
            return Err(switch_down());
        }
        let result = Ok(json!({"interfaces": self.ports.interfaces(spec)}));
        let spec = spec.clone();
        self.order_stream(asker, result, |greeting| Order::Capture { spec, greeting })
    }

    /// Has the switch answer this client. One line after the answer is the profile.
    pub(super) fn profile(&mut self, spec: &ProfileSpec, asker: &Asker) -> Result<(), Fault> {
        spec.check()?;
        if !self.switch.process.is_up() {
            return Err(switch_down());
        }
        let result = Ok(json!({"duration_s": spec.duration_s, "every": spec.every()}));
        let spec = spec.clone();
        self.order_stream(asker, result, |greeting| Order::Profile { spec, greeting })
    }

    /// Gives the switch the connection of this client, which gets `result` first as the answer.
    fn order_stream(
        &mut self,
        asker: &Asker,
        result: Result<Value, Fault>,
        order: impl FnOnce(String) -> Order,
    ) -> Result<(), Fault> {
        // One that is gone needs no answer.
        let Some(shared) = self.clients.share(asker) else {
            return Ok(());
        };
        let failed = |error| Fault::internal("share the connection", error);
        let fd = shared.map_err(failed)?;
        self.datapath_clients.keep(&fd, &self.poller).map_err(failed)?;
        let greeting = asker.id.as_ref().map(|id| rpc::write_answer(id, &result)).unwrap_or_default();
        let greeting = String::from_utf8_lossy(&greeting).into_owned();
        self.switch.order_with(order(greeting), vec![fd], OrderPurpose::Streamed, Some(asker.clone()));
        Ok(())
    }

    /// The switch has begun: the connection is its own.
    pub(super) fn streamed(&mut self, asker: Option<Asker>) {
        if let Some(asker) = asker {
            self.clients.hand_over(&asker, &self.poller);
        }
    }
}
