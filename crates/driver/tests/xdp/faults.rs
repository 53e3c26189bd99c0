//! What goes wrong at devices.
