#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skyphos_fuzz::index_set::run(data));
