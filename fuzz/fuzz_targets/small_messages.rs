#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skyphos_fuzz::small_messages::run(data));
