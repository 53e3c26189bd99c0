//! Headers, checksums and segments against an independent implementation of the same protocols.

#![allow(missing_docs)]

mod coalesce;
mod headers;
mod key;
mod packets;
mod segmentation;
mod too_big;
