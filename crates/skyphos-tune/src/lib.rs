//! The tuner: which algorithm a collective runs, its layers, and when the ranks survey their data again.
//!
//! The tuner is a state machine without IO. Timings of finished calls and numbers of surveys come in, choices go out. It has no
//! clock, no file, no transport and no lock, so a table of events tests every transition. The caller guarantees that all ranks
//! of a group feed it the same surveys and result sizes in the same order; then all of them choose the same.
//!
//! 1. [`Tuner::recall`] says how the next call of a kind runs: [`Recalled::Run`] a known variant, or [`Recalled::Survey`] first.
//! 2. After a survey, [`Facts::agreed`] turns the ranks' numbers into the input of a choice, and [`next_round`] picks the
//!    variants to try ([`trials`]).
//! 3. [`Tuner::finish`] takes the call's duration and bytes ([`observations`]), and the size of its result ([`cache`]).
//!
//! Reading order: [`parameters`] (every constant, with its measurement), [`choice`] (predictions of all algorithms), [`trials`],
//! [`cache`], [`observations`], [`corrections`], [`tuner`]. [`plan_degrees`] chooses the layers of plans, [`outer`] the
//! algorithm of a sum of outer products.
//! Decisions 0009, 0010 and 0013 have the reasons and measurements.

pub mod algorithm;
pub mod cache;
pub mod choice;
pub mod corrections;
pub mod dense;
pub mod numbers;
pub mod observations;
pub mod outer;
pub mod parameters;
pub mod plan_degrees;
pub mod trials;
pub mod tuner;

pub use algorithm::{Algorithm, algorithm_of_route};
pub use cache::{CallReport, Recalled, ResultSize, SurveyResult, TuningCache};
pub use choice::{Choice, Reduction, TimedAlgorithm, Workload, auto_may_take};
pub use dense::{DenseThreshold, choose_dense};
pub use numbers::{largest, median};
pub use observations::{Observations, PROFILE_WORDS, Timing, agreed_profile};
pub use parameters::TuningParameters;
pub use trials::{Facts, Limits, NextRound, Trials, Variant, next_round};
pub use tuner::Tuner;
