//! The planner: predicted traffic and time of each algorithm, and the degrees with the least predicted time.
//!
//! [`density`]: indices in a union of power-law sets (Kylix, Proposition 4.1).
//! [`union`]: the same for evenly drawn indices and for curves that were measured.
//! [`degrees`]: the papers' rule for layer degrees (Kylix §III-D, §IV).
//! [`profile`]: numbers that describe the machine and its network. [`stage`]: the duration of a stage of a collective.
//! [`predict`]: time, bytes and rounds of each algorithm of an allreduce.
//! [`outer`]: the same for each algorithm of a sum of outer products.
//! [`plans`]: the same for a configuration and its reductions, by degrees.
//!
//! Nothing here communicates. Callers must pass the same numbers on all ranks.

#![forbid(unsafe_code)]

pub mod degrees;
pub mod density;
pub mod outer;
pub mod plans;
pub mod predict;
pub mod profile;
pub mod stage;
pub mod union;

pub use degrees::{Sizes, choose_degrees, predict_rows};
pub use density::PowerLaw;
pub use outer::{OuterPrediction, OuterRoute, OuterWork};
pub use plans::{PlanPrediction, PlanWork};
pub use predict::{Parts, Prediction, Route, Work, factorisations, survey_stage};
pub use profile::{Kernels, Profile, RowKernels};
pub use stage::{CHUNK_BYTES, Stage};
pub use union::Union;
