import re,sys,subprocess,os
def code(s):
    out=[]
    for l in s.split('\n'):
        l2=re.sub(r'(^|\s)//.*$','',l).strip()
        if l2: out.append(l2)
    return out
MAP={'crates/skyphos/src/simulate/transfers.rs':'crates/skyphos/src/simulate/moved.rs','crates/skyphos/src/simulate/probe.rs':'crates/skyphos/src/simulate/probed.rs'}
applied=skipped=0
for spec in sys.argv[1:]:
    path=None; lines=open(spec).read().split('\n'); i=0; t=None
    def flush():
        if path and t is not None: open(path,'w').write(t)
    if spec.endswith('.lines'):
        for l in lines+['@@ ']:
            if l.startswith('@@ '):
                if path and os.path.exists(path): open(path,'w').write('\n'.join(x for x in t))
                path=l[3:].strip()
                if path and os.path.exists(path):
                    base=subprocess.run(['git','show','b786c9ce:'+path],capture_output=True,text=True).stdout.split('\n'); t=open(path).read().split('\n')
                else: path=None
                continue
            m=re.match(r'(\d+) (.*)$',l)
            if not (m and path): continue
            old=base[int(m[1])-1]; new=m[2]
            if not(old.strip().startswith('//') and new.startswith('//')) : skipped+=1; continue
            k0=old.strip()[:3]; k1=new[:3]
            if (k0 in('///','//!'))!=(k1 in('///','//!')) or (k0 in('///','//!') and k0!=k1): skipped+=1; continue
            at=[j for j,x in enumerate(t) if x==old]
            if not at: skipped+=1; continue
            k=min(at,key=lambda j:abs(j-int(m[1]))); ind=re.match(r'\s*',old)[0]
            t[k]='\n'.join(ind+x for x in new.split('\\n')); t='\n'.join(t).split('\n'); applied+=1
        continue
    while i<len(lines):
        l=lines[i]
        if l.startswith('@@ '):
            flush(); path=MAP.get(l[3:].strip(),l[3:].strip()); t=open(path).read() if os.path.exists(path) else None
        elif l.startswith('<<<'):
            i+=1; old=[]
            while lines[i]!='===': old.append(lines[i]); i+=1
            i+=1; new=[]
            while lines[i]!='>>>': new.append(lines[i]); i+=1
            o='\n'.join(old); n='\n'.join(new)
            ok=t is not None and code(o)==code(n) and t.count(o)==1 and not (set(re.findall(r'\[`[^`]*`\]',n))-set(re.findall(r'\[`[^`]*`\]',o)))
            if ok: t=t.replace(o,n); applied+=1
            else: skipped+=1
        i+=1
    flush()
print(applied,skipped)
