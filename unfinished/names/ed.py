#!/usr/bin/env python3
"""Spec: '@@ path' starts a file; 's OLD NEW' word-renames; '<<<' old '===' new '>>>' exact replacement (once; '<<<*' all)."""
import re, sys, subprocess
path=None; text=None; bad=0
def flush():
    if path: open(path,'w').write(text)
lines=open(sys.argv[1]).read().split('\n'); i=0
while i<len(lines):
    l=lines[i]
    if l.startswith('@@ '):
        flush(); path=l[3:].strip(); text=open(path).read()
    elif l.startswith('s '):
        _,a,b=l.split(' ',2); n=len(re.findall(r'\b'+a+r'\b',text))
        if not n: print('NO WORD',path,a); bad+=1
        text=re.sub(r'\b'+a+r'\b',b,text)
    elif l.startswith('r '):
        _,a,b=l.split(" ",2); text,n=re.subn(a,b,text)
        if not n: print('NO RE',path,a); bad+=1
    elif l.startswith('<<<'):
        every=l.startswith('<<<*'); i+=1; old=[]
        while lines[i]!='===': old.append(lines[i]); i+=1
        i+=1; new=[]
        while lines[i]!='>>>': new.append(lines[i]); i+=1
        o='\n'.join(old); n='\n'.join(new); c=text.count(o)
        if c==0 or (c>1 and not every): print('COUNT',c,path,repr(o[:90])); bad+=1
        else: text=text.replace(o,n)
    elif l.strip(): print('?',l); bad+=1
    i+=1
flush(); print('bad',bad)
