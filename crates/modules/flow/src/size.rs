//! The heap memory of flows' values, which the bound of a table counts.

use crate::action::{Action, Rewrite, Userspace};
use crate::check::Match;
use crate::key::{FlowKey, Nsh, NshContext};
use crate::tunnel::{Tunnel, TunnelOptions};

impl Action {
    /// Bytes of a list of actions, with nested lists and data of the control plane.
    #[must_use]
    pub fn memory_bytes(actions: &[Self]) -> usize {
        size_of_val(actions) + actions.iter().map(Self::bytes_behind).sum::<usize>()
    }

    fn bytes_behind(&self) -> usize {
        match self {
            Action::Userspace(userspace) => userspace.bytes_behind(),
            Action::Sample(sample) => Self::memory_bytes(&sample.actions),
            Action::Clone(actions) => Self::memory_bytes(actions),
            Action::CheckLength(check) => {
                Self::memory_bytes(&check.greater) + Self::memory_bytes(&check.less_equal)
            }
            Action::Ct(ct) => {
                let name = |name: &Option<String>| name.as_ref().map_or(0, String::len);
                size_of_val(&**ct) + name(&ct.helper) + name(&ct.timeout)
            }
            Action::PushNsh(nsh) => size_of::<Nsh>() + nsh.bytes_behind(),
            Action::Set(Rewrite::Nsh(pair)) => {
                2 * size_of::<Nsh>() + pair.0.bytes_behind() + pair.1.bytes_behind()
            }
            Action::Set(Rewrite::Tunnel(tunnel)) => tunnel.memory_bytes(),
            _ => 0,
        }
    }
}

impl Userspace {
    /// Heap bytes of the action: the control plane's data.
    #[must_use]
    pub fn bytes_behind(&self) -> usize {
        self.user_data.as_ref().map_or(0, Vec::len)
    }
}

impl Match {
    /// Heap bytes of key and mask.
    #[must_use]
    pub fn bytes_behind(&self) -> usize {
        self.key.bytes_behind() + self.mask.as_ref().map_or(0, FlowKey::bytes_behind)
    }
}

impl FlowKey {
    fn bytes_behind(&self) -> usize {
        let tunnel = self.tunnel.as_ref().map_or(0, |tunnel| tunnel.memory_bytes());
        tunnel + self.nsh.as_ref().map_or(0, Nsh::bytes_behind)
    }
}

impl Nsh {
    fn bytes_behind(&self) -> usize {
        match &self.context {
            NshContext::Md2(bytes) => bytes.len(),
            NshContext::None | NshContext::Md1(_) => 0,
        }
    }
}

impl Tunnel {
    fn memory_bytes(&self) -> usize {
        let options = match &self.options {
            TunnelOptions::Geneve(bytes) | TunnelOptions::Erspan(bytes) => bytes.len(),
            TunnelOptions::None | TunnelOptions::VxlanGbp(_) => 0,
        };
        size_of::<Self>() + options
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::SampleAction;

    #[test]
    fn memory_behind_nested_lists_is_counted() {
        let data = |len| Action::Userspace(Userspace { user_data: Some(vec![0; len]), ..Default::default() });
        let one = size_of::<Action>();
        assert_eq!(Action::memory_bytes(&[]), 0);
        assert_eq!(Action::memory_bytes(&[Action::Output(1), data(100)]), 2 * one + 100);
        let sample = Action::Sample(SampleAction { probability: 1, actions: vec![data(7)] });
        assert_eq!(Action::memory_bytes(&[Action::Clone(vec![sample])]), 3 * one + 7);
        let tunnel = Tunnel { options: TunnelOptions::Geneve(vec![0; 9]), ..Tunnel::default() };
        let key = FlowKey { tunnel: Some(Box::new(tunnel)), ..FlowKey::default() };
        let both = Match { key: key.clone(), mask: Some(key) };
        assert_eq!(both.bytes_behind(), 2 * (size_of::<Tunnel>() + 9));
    }
}
