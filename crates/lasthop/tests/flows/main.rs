//! The flow table and its control interface on the built binary: a control plane, and the stock ovs-dpctl.

mod dpctl;
mod fairness;
mod lifecycle;
mod plane;
mod requested;
mod status;
mod traffic;
