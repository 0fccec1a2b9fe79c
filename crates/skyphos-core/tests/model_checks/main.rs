//! Model checks: every order of events of small groups.

mod racing;
mod survivors;
